"""Puts payloads aside that are too large for the broker; `protocol.blobs` says where each belongs."""

import asyncio
import time
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from protocol import blobs
from protocol.errors import QueueUnavailable
from protocol.messages import Payload, Request


class PayloadStore:
    """`keep` answers the reference that travels in the message instead of the payload."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        self._redis = redis
        self._folder = folder

    async def keep(self, request: Request, payload: Payload) -> str:
        data = blobs.pack_payload(payload)
        expires = request.deadline + blobs.SLACK_S
        ref = blobs.reference(request.id, len(data), expires)
        key = blobs.redis_key(ref)
        try:
            if key is None:
                await asyncio.to_thread(blobs.write_file, self._folder, ref, data)
            else:
                await self._redis.set(key, data, ex=max(int(expires - time.time()), 1))
        except (RedisError, OSError) as error:
            raise QueueUnavailable("the payload could not be stored for the worker") from error
        return ref
