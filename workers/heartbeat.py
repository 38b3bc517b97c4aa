"""Says every second that this worker lives and how it fares, and ends the process when it only seems to."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from protocol import beats, clock, names
from workers.links import connect

log = logging.getLogger("shoal.heartbeat")

BEAT_S = 1.0
BEAT_TTL_S = 5
WORKERS_KEPT_S = 3600.0
EXIT_STATUS = 70  # os.EX_SOFTWARE; the supervisor starts a new worker


class Heartbeat:
    """`beat` gives the content. `ailment` gives the reason why this process is of no more use, or None."""

    def __init__(
        self, redis_url: str, worker_id: str, beat: Callable[[], dict[str, Any]], ailment: Callable[[], str | None]
    ) -> None:
        self._redis = connect(redis_url, timeout_s=3)
        self._worker_id = worker_id
        self._beat = beat
        self._ailment = ailment
        self._is_away = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        try:
            asked = time.time()
            clock.learn(self._redis.time(), asked, time.time())
        except redis.RedisError:
            log.warning("redis's time not learned: it is away")
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Say goodbye, so that nobody counts on this worker for another five seconds."""
        self._stopping.set()
        self._thread.join(timeout=5)
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.delete(names.worker(self._worker_id))
                pipe.zrem(names.WORKERS, self._worker_id)
                pipe.execute()
        except redis.RedisError:
            log.warning("goodbye not said: redis is away")

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_S):
            reason = self._ailment()
            if reason is not None:
                end_process(reason)
            try:
                self._send()
            except redis.RedisError as error:
                if not self._is_away:
                    log.warning("beats not heard: redis is away", extra={"error": type(error).__name__})
                self._is_away = True
            except Exception:  # the loop's edge
                log.exception("beat failed")

    def _send(self) -> None:
        now, asked = clock.now(), time.time()
        beat = beats.write({**self._beat(), "clock_ahead_s": clock.ahead_s()})
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(names.worker(self._worker_id), beat, ex=BEAT_TTL_S)
            pipe.zadd(names.WORKERS, {self._worker_id: now})
            pipe.zremrangebyscore(names.WORKERS, "-inf", now - WORKERS_KEPT_S)
            pipe.time()
            *_, server_time = pipe.execute()
        clock.learn(server_time, asked, time.time())
        self._is_away = False


def end_process(reason: str) -> None:
    """At once: nothing here can be trusted to end in order, and what is held runs elsewhere."""
    log.critical("worker ends itself: %s", reason)
    logging.shutdown()
    os._exit(EXIT_STATUS)
