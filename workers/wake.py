"""Hears what gateways say of queues just published to and requests just cancelled.

One thread blocks on the pool's wake stream. The stream is a hint and short: whoever may have missed an entry looks at
the demand set and the set of cancels instead, which this does at its start, after every break, and now and then.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis

from protocol import clock, names
from workers.links import connect

log = logging.getLogger("shoal.wake")

BLOCK_MS = 2000
SURVEY_S = 10.0  # between looks at the demand set
DEMAND_S = 600.0
OLD_DEMAND_S = 86400.0  # looked at once, at the start: work may have waited long for a worker
CANCELS_KEPT_S = 3600.0
RETRY_S = 0.5


class Cancelled:
    """Ids cancelled in the last hour, as far as this worker knows. One thread writes, any may look."""

    def __init__(self) -> None:
        self._ids: dict[str, float] = {}

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._ids

    def add(self, request_id: str, at: float) -> None:
        self._ids.pop(request_id, None)  # so that the dict stays ordered by time
        self._ids[request_id] = at

    def trim(self, now: float) -> None:
        while self._ids:
            oldest = next(iter(self._ids))
            if self._ids[oldest] > now - CANCELS_KEPT_S:
                return
            del self._ids[oldest]


class Wake:
    """`on_queues` and `on_cancel` are called from this thread."""

    def __init__(
        self,
        redis_url: str,
        pool: str,
        cancelled: Cancelled,
        on_queues: Callable[[Iterable[str]], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        self._redis = connect(redis_url, timeout_s=BLOCK_MS / 1000 + 3)
        self._stream = names.wake_stream(pool)
        self._cancelled = cancelled
        self._on_queues = on_queues
        self._on_cancel = on_cancel
        self._surveyed = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                log.warning("wake stream lost", extra={"error": type(error).__name__})
            except Exception:  # the loop's edge: without this thread only the slow ways of finding work are left
                log.exception("wake failed")
            self._stopping.wait(RETRY_S)

    def _listen(self) -> None:
        last = self._newest()  # before the looks at the sets: what those miss is newer than this
        self._learn_cancels()
        self._survey(OLD_DEMAND_S)
        while not self._stopping.is_set():
            found = self._redis.xread({self._stream: last}, count=256, block=BLOCK_MS)
            entries = _entries(found)
            if entries:
                last = entries[-1][0]
                self._handle([fields for _, fields in entries])
            if time.monotonic() - self._surveyed > SURVEY_S:
                self._survey(DEMAND_S)

    def _newest(self) -> Any:
        newest = self._redis.xrevrange(self._stream, count=1)
        return newest[0][0] if newest else "0"

    def _learn_cancels(self) -> None:
        now = clock.now()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zremrangebyscore(names.CANCELLED, "-inf", now - CANCELS_KEPT_S)
            pipe.zrange(names.CANCELLED, 0, -1, withscores=True)
            _, cancelled = pipe.execute()
        for request_id, at in cancelled:
            self._cancel(request_id.decode(errors="replace"), at)

    def _survey(self, recent_s: float) -> None:
        """Queues with recent demand that the stream may not have named."""
        self._surveyed = time.monotonic()
        now = clock.now()
        self._cancelled.trim(now)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zremrangebyscore(names.DEMAND, "-inf", now - OLD_DEMAND_S)
            pipe.zrangebyscore(names.DEMAND, now - recent_s, "+inf")
            _, demanded = pipe.execute()
        self._on_queues([queue.decode(errors="replace") for queue in demanded])

    def _handle(self, entries: list[dict[bytes, bytes]]) -> None:
        queues: dict[str, None] = {}
        for fields in entries:
            if b"c" in fields:
                self._cancel(fields[b"c"].decode(errors="replace"), clock.now())
            if b"q" in fields:
                queues.update(dict.fromkeys(_queue_names(fields[b"q"])))
        if queues:
            self._on_queues(list(queues))

    def _cancel(self, request_id: str, at: float) -> None:
        if request_id not in self._cancelled:
            self._cancelled.add(request_id, at)
            self._on_cancel(request_id)


def _entries(found: Any) -> list[Any]:
    """The entries of an XREAD of one stream, by either version of the wire protocol."""
    if not found:
        return []
    if isinstance(found, dict):
        return list(next(iter(found.values()))[0])
    return list(found[0][1])


def _queue_names(field: bytes) -> list[str]:
    try:
        named = json.loads(field)
    except ValueError:
        return []
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
