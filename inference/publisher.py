"""Requests on their way to the broker: one thread per process owns the connection and publishes what has piled up.

The event loop hands publications over and is told when they are out; it never waits for a socket. While the broker is
away every publication fails at once, so that callers hear of it in milliseconds instead of a timeout.
"""

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from inference.broker import BATCH, LINK_ERRORS, Link, connect
from protocol import demand, names
from protocol.errors import QueueFull, QueueUnavailable, ShoalError
from protocol.messages import Request

log = logging.getLogger("shoal.publisher")

IDLE_S = 2.0  # how often an idle connection is checked
UNSURE_S = 0.02  # and while the broker is yet to confirm something
PATIENCE_S = 0.9  # a publication not out by then has failed
BACKOFF_S = (0.1, 0.2, 0.5, 1.0)
_LOST = "the broker connection was lost"
_NOT_KEPT = "the broker did not keep the request; send the call again"


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """One message, its body packed. `done` belongs to the event loop; the thread only looks whether it is over."""

    request: Request
    queue: str
    pool: str
    body: bytes
    done: asyncio.Future[None]


class Publisher:
    """`start`, `stop` and `publish` belong to the event loop, everything with an underscore to the thread."""

    def __init__(
        self,
        broker_url: str,
        redis_url: str,
        capacity: int,
        lost: Callable[[str, ShoalError], None],
        forgot: Callable[[ShoalError], None] = lambda error: None,
    ) -> None:
        """`lost` is told, on the event loop, of a message that was taken and later lost; `forgot`, that all are."""
        self.connected = False
        self._broker_url = broker_url
        self._state = redis.Redis.from_url(
            redis_url, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 1)
        )
        self._capacity = capacity
        self._lost = lost
        self._forgot = forgot
        self._mark = names.mark(uuid.uuid4().hex)
        self._has_marked = False
        self._waiting: queue.SimpleQueue[Publication | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Publish what was handed over, then end."""
        self._stopping.set()
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, 5)

    async def publish(self, request: Request, queue_name: str, pool: str, body: bytes) -> None:
        """Returns when the message is with the broker. Raises QueueFull or QueueUnavailable, within a second."""
        if not self.connected:
            raise QueueUnavailable("the broker cannot be reached")
        if self._waiting.qsize() >= self._capacity:
            raise QueueFull(f"{self._capacity} messages wait to be published already")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(Publication(request, queue_name, pool, body, done))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await done
        except TimeoutError:
            raise QueueUnavailable("the broker does not answer") from None

    def _run(self) -> None:
        waits = _backoff()
        while not self._stopping.is_set():
            try:
                with connect(self._broker_url, self._mark) as link:
                    self._greet(link)
                    waits = _backoff()
                    self._serve(link)
            except LINK_ERRORS as error:
                if self.connected:
                    log.warning("broker connection lost", extra={"error": type(error).__name__})
            except (
                BaseException
            ):  # the thread must outlive whatever it met, SystemExit too: without it every call fails
                log.exception("publisher failed")
            self.connected = False
            while not self._waiting.empty():
                self._settle(self._take(block=False), _LOST)
            self._stopping.wait(next(waits))

    def _greet(self, link: Link) -> None:
        if self._has_marked and not link.remembers and self._loop is not None:
            log.warning("the broker was restarted")
            error = QueueUnavailable("the request was lost in a restart of the broker; send the call again")
            self._loop.call_soon_threadsafe(self._forgot, error)
        self._has_marked = self.connected = True

    def _serve(self, link: Link) -> None:
        """Publish until told to stop; an error ends the link."""
        try:
            self._pump(link)
        except BaseException:
            self._lose(link.unsure(), f"{_LOST} before the broker said that it had the request; send the call again")
            raise

    def _pump(self, link: Link) -> None:
        checked = time.monotonic()
        while True:
            batch = self._take(block=not self._stopping.is_set(), wait_s=UNSURE_S if link.unsure() else IDLE_S)
            if not batch and self._stopping.is_set():
                return
            # Also under load: a link may have a connection that carries none of it and yet must show that it lives.
            if link.blocked or not batch or time.monotonic() - checked > IDLE_S:
                checked = time.monotonic()
                link.check()
                self._lose(link.returned(), _NOT_KEPT)
            if link.blocked:
                self._settle(batch, "the broker is out of memory or disk and takes no messages")
            elif batch:
                self._send(link, batch)

    def _send(self, link: Link, batch: list[Publication]) -> None:
        try:
            link.send(batch)
        except BaseException:
            # Uncertain whether they arrived. Callers are told to try again, and cancel what may have arrived.
            self._settle(batch, _LOST)
            raise
        returned = link.returned()
        self._announce(batch)
        self._settle(batch, None, returned)

    def _take(self, block: bool, wait_s: float = 0.0) -> list[Publication]:
        """What waits, up to a batch; blocks for `wait_s` at most. Those given up meanwhile are left out."""
        return [taken for taken in self._drain(block, wait_s) if taken is not None and not taken.done.done()]

    def _drain(self, block: bool, wait_s: float) -> Iterator[Publication | None]:
        with contextlib.suppress(queue.Empty):
            yield self._waiting.get(block, wait_s)
            for _ in range(BATCH - 1):
                yield self._waiting.get_nowait()

    def _announce(self, batch: Iterable[Publication]) -> None:
        """Wake workers and keep the demand known. Without it work is found later, so a failure is only logged."""
        queues: dict[str, list[str]] = {}
        for publication in batch:
            named = queues.setdefault(publication.pool, [])
            if publication.queue not in named:
                named.append(publication.queue)
        try:
            with self._state.pipeline(transaction=False) as pipe:
                for pool, named in queues.items():
                    demand.want(pipe, named)
                    demand.wake(pipe, pool, named)
                pipe.execute()
        except RedisError as error:
            log.warning("workers were not woken", extra={"error": type(error).__name__})

    def _settle(self, batch: Sequence[Publication], reason: str | None, returned: Set[str] = frozenset()) -> None:
        """`reason` says why all of them failed; `returned` names single messages that the broker did not keep."""
        if self._loop is not None and (batch or returned) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, batch, reason, returned)

    def _lose(self, ids: Set[str], reason: str) -> None:
        """Messages that were taken before: whoever waits for their replies must hear of it."""
        if self._loop is not None and not self._loop.is_closed():
            for request_id in ids:
                self._loop.call_soon_threadsafe(self._lost, request_id, QueueUnavailable(reason))

    def _finish(self, batch: Sequence[Publication], reason: str | None, returned: Set[str]) -> None:
        """On the event loop."""
        for publication in batch:
            if publication.done.done():
                continue
            if reason is not None:
                publication.done.set_exception(QueueUnavailable(reason))
            elif publication.request.id not in returned:
                publication.done.set_result(None)
            else:
                publication.done.set_exception(QueueUnavailable(_NOT_KEPT))
        for request_id in returned:
            self._lost(request_id, QueueUnavailable(_NOT_KEPT))


def _backoff() -> Iterator[float]:
    return itertools.chain(BACKOFF_S, itertools.repeat(BACKOFF_S[-1]))
