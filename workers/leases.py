"""Leases on a Redis broker: this worker's are renewed, those of vanished workers are ended.

A thread of its own with a connection of its own, so that nothing that blocks the Hub or the dispatcher costs a lease.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
import redis

from protocol import names
from workers import redis_scripts
from workers.links import connect

log = logging.getLogger("shoal.leases")

INDEX, UNACKED = "unacked_index", "unacked"  # kombu's names
BINDINGS = "_kombu.binding."
SEPARATOR = b"\x06\x16"
CHUNK = 500  # tags per script call
SWEEP = 100  # expired leases taken at once


class Leases:
    """`tags` gives the delivery tags that this worker holds."""

    def __init__(
        self,
        broker_url: str,
        visibility_s: float,
        tags: Callable[[], list[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._visibility_s = visibility_s
        self._tags = tags
        self._redis = connect(broker_url, timeout_s=visibility_s / 2)
        self._renew = self._redis.register_script(redis_scripts.RENEW)
        self._claim = self._redis.register_script(redis_scripts.CLAIM_EXPIRED)
        self._restore = self._redis.register_script(redis_scripts.RESTORE)
        self._is_away = False
        self._renewed = -math.inf
        self._spares = False  # never twice in a row: a worker that is always late must sweep too
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._visibility_s / 4):
            try:
                self.turn()
                self._is_away = False
            except redis.RedisError as error:
                if not self._is_away:
                    log.warning("leases not renewed: redis is away", extra={"error": type(error).__name__})
                self._is_away = True
            except Exception:  # the loop's edge: a worker without this thread would lose all it holds
                log.exception("leases failed")

    def turn(self) -> None:
        """Renew, then sweep; but not right after a silence.

        If it was Redis that stood still, leases ran out whose owners are about to renew them.
        """
        self.renew()
        before, self._renewed = self._renewed, self._clock()
        self._spares = not self._spares and self._renewed - before > self._visibility_s / 2
        if not self._spares:
            self.sweep()

    def renew(self) -> None:
        tags = self._tags()
        for start in range(0, len(tags), CHUNK):
            self._renew(keys=[INDEX], args=tags[start : start + CHUNK])

    def sweep(self) -> int:
        """Put requests whose lease has run out back to the head of their queue; answers how many."""
        claimed = self.claim()
        entries = zip(claimed[::3], claimed[1::3], claimed[2::3], strict=True)
        restored = sum(self.put_back(tag, score, entry) for tag, score, entry in entries)
        if restored:
            log.warning("leases ran out; their requests run again", extra={"count": restored})
        return restored

    def claim(self) -> list[bytes]:
        """Tag, score and entry of leases that ran out; nobody else gets them for the length of a lease."""
        found: Any = self._claim(keys=[INDEX, UNACKED], args=[self._visibility_s, SWEEP, names.INTAKE_QUEUE])
        return list(found)

    def put_back(self, tag: bytes, score: bytes, entry: bytes) -> int:
        """1 if it is in its queue again, 0 if its owner came back or acknowledged it."""
        try:
            message, exchange, routing_key = orjson.loads(entry)
            message["headers"]["redelivered"] = True
            message["properties"]["delivery_info"]["redelivered"] = True
        except (ValueError, TypeError, LookupError):
            log.error("unacknowledged entry dropped: it cannot be read", extra={"bytes": len(entry)})
            self._redis.zrem(INDEX, tag)
            self._redis.hdel(UNACKED, tag)
            return 0
        queue = self._queue(exchange, routing_key)
        return int(self._restore(keys=[INDEX, UNACKED, queue], args=[tag, score, orjson.dumps(message)]))

    def _queue(self, exchange: str, routing_key: str) -> Any:
        """The list a message came from: a queue's own name, or what kombu has bound to the exchange."""
        if exchange:
            members: set[Any] = self._redis.smembers(BINDINGS + exchange)
            for member in members:
                bound_key, _, bound_queue = member.split(SEPARATOR)
                if bound_key.decode() == routing_key:
                    return bound_queue
        return routing_key
