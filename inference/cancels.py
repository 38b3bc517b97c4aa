"""Tells workers which requests nobody waits for any more, so that what is not on a device yet is dropped."""

import asyncio
import logging

from redis.asyncio import Redis
from redis.exceptions import RedisError

from protocol import clock, names

log = logging.getLogger("shoal.cancels")

CAPACITY = 16384
BATCH = 256


class Cancels:
    """Owned by the event loop. `announce` never waits; `run` sends what has piled up."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue(CAPACITY)

    def announce(self, pool: str, request_id: str) -> None:
        """Beyond the queue's capacity a cancel is lost, which only means that its request runs in vain."""
        if not self._waiting.full():
            self._waiting.put_nowait((pool, request_id))

    async def run(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            await self._send([*batch, *self._taken(BATCH - 1)])

    async def flush(self) -> None:
        """Send all that waits; for the end of the process, whose callers were just cut off."""
        while batch := self._taken(BATCH):
            await self._send(batch)

    def _taken(self, most: int) -> list[tuple[str, str]]:
        return [self._waiting.get_nowait() for _ in range(min(most, self._waiting.qsize()))]

    async def _send(self, batch: list[tuple[str, str]]) -> None:
        try:
            await send_cancels(self._redis, batch)
        except RedisError as error:
            log.warning("cancels were not announced", extra={"count": len(batch), "error": type(error).__name__})


async def send_cancels(redis: Redis, batch: list[tuple[str, str]]) -> None:
    """`batch` holds pool and request id. Workers hear of it at once; those that start later find it in the zset.

    A payload that was put aside is needed no more.
    """
    now = clock.now()
    async with redis.pipeline(transaction=False) as pipe:
        for pool, request_id in batch:
            pipe.xadd(names.wake_stream(pool), {"c": request_id}, maxlen=names.WAKE_LENGTH)
            pipe.unlink(names.blob(request_id))
        pipe.zadd(names.CANCELLED, {request_id: now for _, request_id in batch})
        await pipe.execute()
