"""Requests that were delivered before: whoever held them has vanished, perhaps because of one of them.

They are let in a few at a time, and each start is counted. If the worker vanishes again, those few are the suspects,
and suspects run one by one: so the request that ends workers is found and refused, and its neighbours are not.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

import redis

from protocol import names
from protocol.errors import WorkerLost
from workers.bridge import Bridge
from workers.custody import Custody
from workers.deliveries import Delivery, Outbox
from workers.receipts import Receipt

log = logging.getLogger("shoal.redelivery")

MOST_STARTS = 3  # the first one is not counted: it was an ordinary request then
AT_ONCE = 8  # unsuspected, per model


class Redelivery:
    """Lives on the intake's thread."""

    def __init__(
        self, state: "redis.Redis", bridge: Bridge, custody: Custody, submit: Callable[[Delivery], None], ttl_s: int
    ) -> None:
        self._state = state
        self._bridge = bridge
        self._custody = custody
        self._submit = submit
        self._ttl_s = ttl_s
        self._fresh: defaultdict[str, deque[Delivery]] = defaultdict(deque)  # by digest
        self._suspects: deque[Delivery] = deque()
        self._started: dict[str, str] = {}  # request id: digest
        self._suspect_runs = False

    def admit(self, delivery: Delivery) -> None:
        """Take it in, unless its result is known. Raises WorkerLost when it has had its chances."""
        starts, is_stored = self._look_up(delivery.request.id)
        receipt: Receipt = delivery.receipt
        receipt.attempts = starts + 1
        if is_stored and delivery.request.store:
            self._bridge.put(partial(self._custody.drop, receipt))
        elif starts + 1 >= MOST_STARTS:
            raise WorkerLost(f"the request was started {starts + 1} times and each time its worker vanished")
        elif starts:
            self._suspects.append(delivery)
        else:
            self._fresh[delivery.request.digest].append(delivery)
        self._start_some()

    def ended(self, request_id: str) -> None:
        """Answered or given back; the next may start."""
        if self._started.pop(request_id, None) is not None:
            self._suspect_runs = False
            self._start_some()

    def drain(self, outbox: Outbox) -> None:
        """Give back what has not started."""
        waiting = [*self._suspects, *(delivery for queue in self._fresh.values() for delivery in queue)]
        self._suspects.clear()
        self._fresh.clear()
        outbox.give_back(waiting)

    def _start_some(self) -> None:
        if self._suspect_runs:
            return
        if self._suspects:  # before any others, or they would wait for ever
            if not self._started:
                self._suspect_runs = True
                self._start(self._suspects.popleft())
            return
        running = list(self._started.values())
        for digest, queue in self._fresh.items():
            for _ in range(min(len(queue), AT_ONCE - running.count(digest))):
                self._start(queue.popleft())

    def _start(self, delivery: Delivery) -> None:
        attempts = names.attempts(delivery.request.id)
        try:
            with self._state.pipeline(transaction=False) as pipe:
                pipe.incr(attempts)
                pipe.expire(attempts, self._ttl_s)
                pipe.execute()
            delivery.receipt.is_counted = True
            delivery.receipt.attempts += 1
        except redis.RedisError:
            log.warning("start not counted", extra={"request_id": delivery.request.id})
        self._started[delivery.request.id] = delivery.request.digest
        self._submit(delivery)

    def _look_up(self, request_id: str) -> tuple[int, bool]:
        """How often it was started since its first worker vanished, and whether it has a result. Raises RedisError."""
        with self._state.pipeline(transaction=False) as pipe:
            pipe.get(names.attempts(request_id))
            pipe.exists(names.task_result(request_id))
            starts, is_stored = pipe.execute()
        return max(int(starts or 0), 0), bool(is_stored)
