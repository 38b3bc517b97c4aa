"""The two brokers behind one face, on the thread of kombu's Hub: what a subscription, a receipt and its return mean.

RabbitMQ has a file of its own, `rabbit_broker`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kombu.entity import Queue

from protocol import names
from workers.claiming import Backlog
from workers.receipts import Receipt

FALLBACK_S = 0.2  # plain Celery clients write no wake stream
HOLD_BACK_S = 0.05  # acknowledgements wait for a pop to go with; a worker killed meanwhile has answered them already
MOST_HELD_BACK = 128
PLAIN_PRIORITIES = (3, 6, 9)  # kombu keeps a list per step; plain clients may use them, gateways do not

Credit = Callable[[str], tuple[int, bool]]  # by queue: the cost it may take, and whether one may cost more than that


class Broker(Protocol):
    """One connection's worth of a broker."""

    look_every_s: float  # into a queue of which others should take first
    looks_at_once: int
    is_cheap_to_ask: bool

    def subscribe(self, queue: Queue) -> None: ...

    def unsubscribe(self, name: str) -> None: ...

    def subscribed(self, name: str) -> bool: ...

    def wake(self, queues: Iterable[str] | None) -> None:
        """Look into these queues now; None for all."""
        ...

    def find_waiting(self, queues: Sequence[str]) -> list[str]:
        """Those with messages in them, as far as that is cheap to know."""
        ...

    def behind(self) -> list[str]:
        """Subscribed queues that may have more than this worker should hold."""
        ...

    def backlogs(self, queues: Sequence[str]) -> dict[str, Backlog]:
        """What waits in these, subscribed or not."""
        ...

    def tick(self) -> None:
        """The Hub is about to wait."""
        ...

    def flush(self) -> None:
        """Send all acknowledgements that have gathered."""
        ...

    def acknowledge(self, receipt: Receipt) -> None: ...

    def give_back(self, receipt: Receipt) -> None: ...

    def keep_alive(self) -> None:
        """What the Hub does between events, for when it runs no more."""
        ...


class Holdings:
    """The Redis delivery tags this worker has leases on, across connections. The Hub's thread writes."""

    def __init__(self) -> None:
        self._tags: dict[str, None] = {}
        self.acknowledged: list[str] = []  # Redis is yet to be told
        self.oldest_acknowledged = 0.0

    def tags(self) -> list[str]:
        """A copy, from any thread."""
        return list(self._tags)

    def hold(self, tag: str) -> None:
        self._tags[tag] = None

    def acknowledge(self, tag: str) -> None:
        self._tags.pop(tag, None)
        if not self.acknowledged:
            self.oldest_acknowledged = time.monotonic()
        self.acknowledged.append(tag)

    def forget(self, tag: str) -> None:
        self._tags.pop(tag, None)


class RedisBroker:
    """On Redis a receipt is a lease under a tag, good on any connection; credit is counted here, in cost."""

    look_every_s = 0.05  # one round trip for all queues
    looks_at_once = 256
    is_cheap_to_ask = True

    def __init__(self, consumer: Any, credit: Credit, holdings: Holdings, call_soon: Callable[..., object]) -> None:
        self._consumer = consumer
        self._channel = consumer.channel
        self._credit = credit
        self._holdings = holdings
        self._call_soon = call_soon
        self._starved: set[str] = set()  # had more than their credit allowed

    def subscribe(self, queue: Queue) -> None:
        if not self._consumer.consuming_from(queue.name):
            self._consumer.add_queue(queue)
            self._consumer.consume()

    def unsubscribe(self, name: str) -> None:
        self._consumer.cancel_by_queue(name)
        self._starved.discard(name)

    def subscribed(self, name: str) -> bool:
        return bool(self._consumer.consuming_from(name))

    def wake(self, queues: Iterable[str] | None) -> None:
        queues = self._channel.active_queues if queues is None else queues
        lists = [name for queue in queues for name in self._lists(queue)]
        credits = {name: self._credit(self._queue(name)) for name in lists}
        credits = {name: (cost, any_) for name, (cost, any_) in credits.items() if cost > 0 or any_}
        acknowledged = list(self._holdings.acknowledged)
        has_more, starved = self._channel.pop(credits, self._holdings.hold, acknowledged)
        del self._holdings.acknowledged[: len(acknowledged)]
        self._starved = (self._starved - set(credits)) | starved
        if has_more:
            self._call_soon(self.wake, list(credits))

    def find_waiting(self, queues: Sequence[str]) -> list[str]:
        sizes = self._channel.sizes(queues) if queues else []
        return [queue for queue, size in zip(queues, sizes, strict=True) if size]

    def behind(self) -> list[str]:
        return list({self._queue(name) for name in self._starved} - {names.INTAKE_QUEUE})

    def backlogs(self, queues: Sequence[str]) -> dict[str, Backlog]:
        found: dict[str, Backlog] = self._channel.backlogs(queues)
        return found

    def tick(self) -> None:
        """Acknowledgements free credit, and then go along with the pop; else they wait a little for the next one."""
        holdings = self._holdings
        if not holdings.acknowledged:
            return
        if self._starved:
            self.wake({self._queue(name) for name in self._starved})
        elif (
            len(holdings.acknowledged) >= MOST_HELD_BACK
            or time.monotonic() - holdings.oldest_acknowledged > HOLD_BACK_S
        ):
            self.flush()

    def flush(self) -> None:
        if self._holdings.acknowledged:
            self._channel.acknowledge(self._holdings.acknowledged)
            self._holdings.acknowledged = []

    def acknowledge(self, receipt: Receipt) -> None:
        self._holdings.acknowledge(receipt.message.delivery_tag)

    def give_back(self, receipt: Receipt) -> None:
        """Without a connection the lease runs out instead."""
        self._holdings.forget(receipt.message.delivery_tag)
        if self._channel.connection is not None:
            self._channel.give_back(receipt.message, receipt.queue)

    def keep_alive(self) -> None:
        """Leases are renewed by a thread of their own."""

    def _lists(self, queue: str) -> list[str]:
        if queue != names.INTAKE_QUEUE:
            return [queue]
        return [queue, *(f"{queue}{self._channel.sep}{step}" for step in PLAIN_PRIORITIES)]

    def _queue(self, name: str) -> str:
        return name.partition(self._channel.sep)[0]
