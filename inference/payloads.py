"""Puts payloads aside that are too large for the broker; `protocol.blobs` says where each belongs."""

import asyncio
import logging
import math
import time
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from protocol import blobs, clock
from protocol.errors import QueueFull, QueueUnavailable
from protocol.messages import Payload, Request

log = logging.getLogger("shoal.payloads")


SWEEP_S = 60.0
LOOK_S = 1.0  # how old Redis' word about its memory may be
MOST = 0.75  # of Redis' memory: what is left is for replies, results and messages, without which nothing ends


class PayloadStore:
    """`keep` answers the reference that travels in the message instead of the payload."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        self._redis = redis
        self._folder = folder
        self._is_full = False
        self._looked = float("-inf")

    async def run(self) -> None:
        """Sweep files whose requests nobody answered."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await asyncio.to_thread(blobs.sweep, self._folder, clock.now())
            except OSError as error:
                log.warning("payloads not swept", extra={"error": error.strerror})

    async def keep(self, request: Request, payload: Payload) -> str:
        data = blobs.pack_payload(payload)
        expires = request.deadline + blobs.SLACK_S
        ref = blobs.reference(request.id, len(data), expires)
        key = blobs.redis_key(ref)
        try:
            if key is None:
                await asyncio.to_thread(blobs.write_file, self._folder, ref, data)
            else:
                await self._look()
                await self._redis.set(key, data, ex=max(int(expires - clock.now()), 1))
        except (RedisError, OSError, RuntimeError) as error:  # RuntimeError: uvloop's word for a closed transport
            raise QueueUnavailable("the payload could not be stored for the worker") from error
        return ref

    async def _look(self) -> None:
        """Raises QueueFull while Redis has little memory left."""
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            memory = await self._redis.info("memory")
            self._is_full = memory["used_memory"] > MOST * (memory.get("maxmemory") or math.inf)
        if self._is_full:
            raise QueueFull("Redis has no room for large payloads now")
