"""How many messages wait in queues at the broker, one class per broker, and since when where the broker can tell."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import amqp.exceptions
from kombu.connection import Connection
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from inference.broker import LINK_ERRORS
from protocol import demand, links

TIMEOUT_S = 2


@dataclass(frozen=True, slots=True)
class Depth:
    """Messages that wait, and when the oldest was published, in unix seconds; None: the broker cannot tell."""

    messages: int = 0
    oldest: float | None = None


class Depths(Protocol):
    """A connection of its own, made when it is needed."""

    async def read(self, queues: Sequence[str]) -> Mapping[str, Depth]:
        """Raises one of LINK_ERRORS while the broker is away. A queue that is not there is empty."""
        ...

    async def close(self) -> None: ...


def connect(broker_url: str) -> Depths:
    return RedisDepths(broker_url) if links.is_redis(broker_url) else AmqpDepths(broker_url)


class RedisDepths:
    """One script for all queues."""

    def __init__(self, url: str) -> None:
        retry = Retry(NoBackoff(), 1)
        self._redis: Redis = Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=retry
        )
        self._script = self._redis.register_script(demand.BACKLOGS)

    async def read(self, queues: Sequence[str]) -> Mapping[str, Depth]:
        if not queues:
            return {}
        found: Any = await self._script(keys=list(queues))
        pairs = zip(queues, found[::2], found[1::2], strict=True)
        return {queue: Depth(length, float(head) if head else None) for queue, length, head in pairs}

    async def close(self) -> None:
        await self._redis.aclose()


class AmqpDepths:
    """RabbitMQ answers for one queue at a time, and never shows a message without delivering it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None

    async def read(self, queues: Sequence[str]) -> Mapping[str, Depth]:
        return await asyncio.to_thread(self._read, queues) if queues else {}

    async def close(self) -> None:
        await asyncio.to_thread(self._drop)

    def _read(self, queues: Sequence[str]) -> Mapping[str, Depth]:
        try:
            return {queue: Depth(self._count(queue)) for queue in queues}
        except LINK_ERRORS:
            self._drop()
            raise

    def _count(self, queue: str) -> int:
        if self._connection is None:
            options = {"read_timeout": TIMEOUT_S, "write_timeout": TIMEOUT_S}
            self._connection = Connection(self._url, connect_timeout=TIMEOUT_S, transport_options=options)
        try:
            return int(self._connection.default_channel.queue_declare(queue, passive=True).message_count)
        except amqp.exceptions.NotFound:  # the channel is gone with the question
            self._drop()
            return 0

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
