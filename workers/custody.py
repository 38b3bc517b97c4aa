"""Everything this worker holds and has not acknowledged, kept in step with Celery's own books.

Lives on the thread of kombu's Hub, like every broker object. Celery's heartbeat, `inspect`, `revoke` and Flower read
the same books and events as for any other worker.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from celery.worker import state

from workers.brokers import Broker
from workers.receipts import Receipt

RECENT = 16  # messages that a mean remembers, about


class Custody:
    """`broker` is None before the first connection; while a connection is lost it is the lost one."""

    def __init__(self) -> None:
        self.broker: Broker | None = None
        self.eventer: Any = None  # Celery's event dispatcher of this connection
        self._requests: Counter[str] = Counter()  # by queue
        self._items: Counter[str] = Counter()
        self._costs: Counter[str] = Counter()
        self._ids: Counter[str] = Counter()
        self._means: dict[str, tuple[float, float]] = {}  # cost and items

    def holds(self, request_id: str) -> bool:
        return self._ids[request_id] > 0

    def ids(self) -> list[str]:
        return list(self._ids)

    def cost(self, queue: str) -> int:
        return self._costs[queue]

    def mean_cost(self, queue: str) -> float | None:
        """Of the messages taken of late; None before the first. Callable from any thread."""
        mean = self._means.get(queue)
        return mean[0] if mean else None

    def item_cost(self, queue: str) -> float | None:
        """Of their items."""
        mean = self._means.get(queue)
        return mean[0] / mean[1] if mean else None

    def is_idle(self, queue: str) -> bool:
        return self._requests[queue] == 0

    def queues(self) -> dict[str, dict[str, int]]:
        """What is held, by queue; callable from any thread."""
        requests, items, costs = self._requests.copy(), self._items.copy(), self._costs.copy()
        return {
            queue: {"requests": count, "items": items[queue], "cost": costs[queue]}
            for queue, count in requests.items()
            if count
        }

    def take(self, receipt: Receipt) -> None:
        self._book(receipt, 1)
        self._learn(receipt)
        state.task_reserved(receipt)
        if self._announces:
            self.eventer.send(
                "task-received",
                uuid=receipt.id,
                name=receipt.name,
                args=receipt.arguments,
                kwargs="{}",
                root_id=receipt.id,
                parent_id=None,
                retries=0,
                eta=None,
                expires=None,
            )

    def start(self, receipts: Iterable[Receipt]) -> None:
        """These are on the device now."""
        for receipt in receipts:
            receipt.start()
            state.task_accepted(receipt)
            if self._announces:
                self.eventer.send("task-started", uuid=receipt.id)

    def settle(self, receipts: Iterable[Receipt]) -> None:
        """Their answers are written: acknowledge."""
        for receipt in receipts:
            self.drop(receipt)
            if self._announces and receipt.error is None:
                result = f"{receipt.request.count} items"
                self.eventer.send("task-succeeded", uuid=receipt.id, result=result, runtime=receipt.forward_s)
            elif self._announces:
                self.eventer.send("task-failed", uuid=receipt.id, exception=receipt.error, traceback="")

    def drop(self, receipt: Receipt) -> None:
        """Acknowledge without an answer of ours, as for a message that was passed on."""
        self._release(receipt)
        receipt.acknowledged = True
        if self.broker is not None:
            self.broker.acknowledge(receipt)

    def give_back(self, receipts: Iterable[Receipt]) -> None:
        """Return these to the broker; the newest first, so that they keep their order at the queue's head."""
        for receipt in sorted(receipts, key=lambda receipt: receipt.request.published, reverse=True):
            self._release(receipt)
            if self.broker is not None:
                self.broker.give_back(receipt)

    @property
    def _announces(self) -> bool:
        return self.eventer is not None and bool(self.eventer.enabled)

    def _release(self, receipt: Receipt) -> None:
        self._book(receipt, -1)
        state.task_ready(receipt)

    def _learn(self, receipt: Receipt) -> None:
        now = float(receipt.request.cost), float(max(receipt.request.count, 1))
        cost, items = self._means.get(receipt.queue, now)
        self._means[receipt.queue] = cost + (now[0] - cost) / RECENT, items + (now[1] - items) / RECENT

    def _book(self, receipt: Receipt, sign: int) -> None:
        self._requests[receipt.queue] += sign
        self._items[receipt.queue] += sign * receipt.request.count
        self._costs[receipt.queue] += sign * receipt.request.cost
        self._ids[receipt.id] += sign
        if not self._ids[receipt.id]:
            del self._ids[receipt.id]
