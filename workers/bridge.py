"""The way from every other thread to the thread of kombu's Hub, which alone may touch broker objects."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger("shoal.bridge")

Job = Callable[[], None]


class Bridge:
    """Jobs run in the order they were put, once each. A lost connection or a stopped Hub only delays them."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._is_scheduled = False
        self._call_soon: Callable[[Job], Any] | None = None
        self._connection_errors: tuple[type[BaseException], ...] = ()

    def attach(self, call_soon: Callable[[Job], Any], connection_errors: tuple[type[BaseException], ...]) -> None:
        """Jobs run on this Hub from now on. Called on its thread at every connection."""
        self._call_soon = call_soon
        self._connection_errors = connection_errors
        self._schedule()

    def put(self, job: Job) -> None:
        self._jobs.append(job)
        if not self._is_scheduled and self._call_soon is not None:
            self._schedule()

    def put_aside(self, job: Job) -> None:
        """For bookkeeping: run it before the next job or at the Hub's next turn, without waking the Hub for it."""
        self._jobs.append(job)

    def run(self) -> None:
        """Run everything that waits. The Hub's thread calls it, or whoever stopped the Hub."""
        self._is_scheduled = False  # before looking, or a job put now would wait for the next one
        while self._jobs:
            job = self._jobs.popleft()
            try:
                job()
            except self._connection_errors:
                self._schedule()
                raise  # the consumer reconnects
            except Exception:  # the loop's edge: one broken job must not end the worker
                log.exception("job failed on the hub")

    def _schedule(self) -> None:
        self._is_scheduled = True
        if self._call_soon is not None:
            self._call_soon(self.run)
