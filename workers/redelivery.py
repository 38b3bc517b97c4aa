"""Requests that were delivered before: whoever held them has vanished, perhaps because of them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import redis

from protocol import names
from protocol.errors import WorkerLost
from workers.bridge import Bridge
from workers.custody import Custody
from workers.deliveries import Delivery
from workers.receipts import Receipt

log = logging.getLogger("shoal.redelivery")

MOST_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Runs on the intake's thread."""

    state: "redis.Redis"
    bridge: Bridge
    custody: Custody
    submit: Callable[[Delivery], None]
    ttl_s: int

    def recheck(self, delivery: Delivery) -> None:
        """Submit it, unless its result is known. Raises WorkerLost when it has had its chances."""
        try:
            count, is_stored = self._look_up(delivery.request.id)
        except redis.RedisError:
            log.warning("attempts unknown", extra={"request_id": delivery.request.id})
            self.submit(delivery)
            return
        receipt: Receipt = delivery.receipt
        receipt.is_counted = True
        if is_stored and delivery.request.store:
            self.bridge.put(partial(self.custody.drop, receipt))
        elif count >= MOST_ATTEMPTS:
            raise WorkerLost(f"the request was started {count} times and each time its worker vanished")
        else:
            self.submit(delivery)

    def _look_up(self, request_id: str) -> tuple[int, bool]:
        attempts = names.attempts(request_id)
        with self.state.pipeline(transaction=False) as pipe:
            pipe.incr(attempts)
            pipe.expire(attempts, self.ttl_s)
            pipe.exists(names.task_result(request_id))
            count, _, is_stored = pipe.execute()
        return int(count), bool(is_stored)
