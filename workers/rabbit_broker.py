"""RabbitMQ as a worker sees it: a receipt dies with its connection, and a consumer's credit counts messages.

Credit should count cost, so each queue's prefetch follows what its messages cost of late. RabbitMQ lets a consumer keep
the prefetch it began with, so a change ends the consumer and begins another; what it holds stays with this worker.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import amqp.exceptions
from kombu.entity import Queue

from protocol import names
from workers.claiming import Backlog
from workers.receipts import Receipt

log = logging.getLogger("shoal.broker")

FIRST_PREFETCH = 16  # while nobody knows what this queue's messages cost
ADJUST_S = 0.05
STEADY_S = 0.25  # between two changes of a queue
CHANGED = 1.5  # a prefetch this much off is changed
OVERFULL = 2  # times what a worker should hold of a queue: then it takes no more until that is done


@dataclass(frozen=True, slots=True)
class Appetite:
    """What a worker should hold of a queue and does, in cost, and what its messages cost on average, if known."""

    limit: int
    held: int
    mean: float | None

    def prefetch(self, most: int) -> int:
        if self.mean is None:
            return min(FIRST_PREFETCH, most)
        return min(max(math.ceil(self.limit / max(self.mean, 1.0)), 1), most)


@dataclass(slots=True)
class Subscription:
    queue: Queue
    prefetch: int = 0  # 0: paused
    changed: float = 0.0


class RabbitBroker:
    """`overfull` is told of a queue of which far too much is held; it may give some back."""

    look_every_s = 0.2  # a question for each queue, and an answer
    looks_at_once = 8
    is_cheap_to_ask = False

    def __init__(
        self,
        consumer: Any,
        connection: Any,
        most: int,
        appetite: Callable[[str], Appetite],
        overfull: Callable[[str], None],
    ) -> None:
        self._consumer = consumer
        self._channel = consumer.channel
        self._connection = connection
        self._most = most
        self._appetite = appetite
        self._overfull = overfull
        self._subscriptions: dict[str, Subscription] = {}
        self._asking: Any = None  # a channel of its own: a question about a queue that is not there ends it
        self._adjust_at = 0.0

    # -- subscriptions -----------------------------------------------------------------------------------------

    def subscribe(self, queue: Queue) -> None:
        if queue.name not in self._subscriptions:
            self._consume(Subscription(queue), self._appetite(queue.name).prefetch(self._most), time.monotonic())

    def unsubscribe(self, name: str) -> None:
        self._subscriptions.pop(name, None)
        self._consumer.cancel_by_queue(name)

    def subscribed(self, name: str) -> bool:
        return name in self._subscriptions

    def _consume(self, subscription: Subscription, prefetch: int, now: float) -> None:
        # Per consumer, never global: a shared credit would let one full queue starve all others.
        self._channel.basic_qos(0, prefetch, False)
        self._consumer.add_queue(subscription.queue)
        self._consumer.consume()
        subscription.prefetch, subscription.changed = prefetch, now
        self._subscriptions[subscription.queue.name] = subscription

    def _adjust(self, subscription: Subscription, now: float) -> None:
        name = subscription.queue.name
        appetite = self._appetite(name)
        wanted = appetite.prefetch(self._most)
        if not subscription.prefetch:
            if appetite.held < appetite.limit:
                self._consume(subscription, wanted, now)
        elif appetite.held > OVERFULL * appetite.limit:
            self._consumer.cancel_by_queue(name)
            subscription.prefetch = 0
            self._overfull(name)
        elif self._is_far(subscription.prefetch, wanted) and now - subscription.changed > STEADY_S:
            self._consumer.cancel_by_queue(name)
            self._consume(subscription, wanted, now)

    @staticmethod
    def _is_far(prefetch: int, wanted: int) -> bool:
        return wanted > CHANGED * prefetch or prefetch > CHANGED * wanted

    # -- looks -------------------------------------------------------------------------------------------------

    def wake(self, queues: Iterable[str] | None) -> None:
        """RabbitMQ pushes."""

    def find_waiting(self, queues: Sequence[str]) -> list[str]:
        return []

    def behind(self) -> list[str]:
        """Queues of which as much is held as may be, so that more may wait."""
        return [
            name
            for name, subscription in self._subscriptions.items()
            if name != names.INTAKE_QUEUE
            and ((appetite := self._appetite(name)).held >= appetite.limit or not subscription.prefetch)
        ]

    def backlogs(self, queues: Sequence[str]) -> dict[str, Backlog]:
        return {queue: Backlog(self._depth(queue)) for queue in queues}

    def _depth(self, queue: str) -> int:
        """Messages that nobody holds."""
        if self._asking is None:
            self._asking = self._connection.channel()
        try:
            return int(self._asking.queue_declare(queue, passive=True).message_count)
        except amqp.exceptions.ChannelError:
            self._asking = None
            return 0

    def tick(self) -> None:
        """Acknowledgements are sent as they come; prefetch follows what messages cost."""
        now = time.monotonic()
        if now >= self._adjust_at:
            self._adjust_at = now + ADJUST_S
            for subscription in list(self._subscriptions.values()):
                self._adjust(subscription, now)

    # -- receipts ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Acknowledgements are sent as they come."""

    def acknowledge(self, receipt: Receipt) -> None:
        if self._is_valid(receipt):
            receipt.message.ack_log_error(log, self._connection.connection_errors)

    def give_back(self, receipt: Receipt) -> None:
        if self._is_valid(receipt):
            receipt.message.reject_log_error(log, self._connection.connection_errors, requeue=True)

    def keep_alive(self) -> None:
        self._connection.heartbeat_check()

    def _is_valid(self, receipt: Receipt) -> bool:
        """False for a message of a lost connection: the broker has taken it back."""
        return receipt.message.channel is self._channel and self._channel.connection is not None
