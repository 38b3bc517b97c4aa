"""The parts of one gateway process: what every call needs, started and stopped together."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from catalog.keys import KeySnapshot
from catalog.snapshot import Snapshot
from inference.cancels import Cancels
from inference.fleet import FleetReader
from inference.mailbox import Mailbox
from inference.payloads import PayloadStore
from inference.publisher import Publisher
from inference.queues import QueueReader
from inference.remote_media import RemoteMedia
from inference.tasks import TaskStore
from inference.usage import Record, UsageMeter
from inference.windows import Windows

log = logging.getLogger("shoal.gateway")

RESTART_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, counts and bytes, as the settings say."""

    request_timeout_s: float = 120
    cold_wait_s: float = 30
    provision_wait_s: float = 5
    task_ttl_s: int = 3600
    max_pending: int = 8192
    max_body_bytes: int = 34 << 20
    receive_s: float = 60  # longest silence while a body is being sent


class CatalogSource(Protocol):
    """`catalog.follow.SnapshotFollower`, or a stand-in."""

    @property
    def current(self) -> Snapshot: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...


class KeySource(Protocol):
    """`catalog.issuing.KeyFollower`, or a stand-in."""

    @property
    def current(self) -> KeySnapshot: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...


class Gateway:
    """`start` and `stop` frame the process's life; a gateway starts whether or not its servers are there yet."""

    def __init__(
        self,
        *,
        broker_url: str,
        redis_url: str,
        data_dir: Path,
        catalog: CatalogSource,
        keys: KeySource,
        limits: Limits,
        record_usage: Record,
        require_keys: bool = False,
        media: RemoteMedia | None = None,
    ) -> None:
        self.catalog = catalog
        self.keys = keys
        self.limits = limits
        self.require_keys = require_keys
        self.redis = Redis.from_url(
            redis_url, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 1), max_connections=512
        )
        self.mailbox = Mailbox(redis_url, limits.max_pending)
        self.publisher = Publisher(broker_url, redis_url, limits.max_pending, self.mailbox.fail, self.mailbox.fail_all)
        self.cancels = Cancels(self.redis)
        self.fleet = FleetReader(self.redis)
        self.queues = QueueReader(self.redis, broker_url, lambda: self.catalog.current, lambda: self.fleet.current)
        self.windows = Windows(lambda model, lane: self.queues.forecast(model, lane, time.monotonic()))
        self.tasks = TaskStore(self.redis, limits.task_ttl_s)
        self.payloads = PayloadStore(self.redis, data_dir / "blobs")
        self.usage = UsageMeter(record_usage)
        self.media = media or RemoteMedia(())
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """The followers take their first look before the first call comes; all else connects in its own time."""
        self.publisher.start()
        for run in (
            self.mailbox.run,
            self.fleet.run,
            self.queues.run,
            self.cancels.run,
            self.usage.run,
            self.payloads.run,
        ):
            self._background.append(asyncio.create_task(_keep_running(run)))
        await asyncio.gather(asyncio.to_thread(self.catalog.start), asyncio.to_thread(self.keys.start))

    async def stop(self) -> None:
        await asyncio.gather(asyncio.to_thread(self.catalog.stop), asyncio.to_thread(self.keys.stop))
        await _end(self._background)
        await self.cancels.flush()
        await self.usage.hand_over()
        await self.publisher.stop()
        await self.queues.close()
        await self.redis.aclose()


async def _keep_running(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A part that ends in an error it did not foresee starts again: without it calls would wait in vain."""
    while True:
        try:
            await run()
        except Exception:  # the loop's edge
            log.exception("a part of the gateway failed and starts again", extra={"part": run.__qualname__})
        await asyncio.sleep(RESTART_S)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel until all have ended: up to Python 3.11 a cancel that meets a finishing `wait_for` is lost."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.2)
