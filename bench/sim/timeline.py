"""Virtual time: a heap of things to do, done in order; nothing takes longer than it is said to."""

import contextlib
import heapq
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any


class Timeline:
    """Callable, so that it can stand where a clock is asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()  # of two things at the same time, the one planned first goes first
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def __call__(self) -> float:
        return self.now

    def at(self, when: float, do: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._planned, (max(when, self.now), next(self._order), do, args))

    def every(self, seconds: float, do: Callable[[], None], first: float) -> None:
        def again() -> None:
            do()
            self.at(self.now + seconds, again)

        self.at(first, again)

    def run(self, until: float) -> None:
        with _quiet():
            while self._planned and self._planned[0][0] <= until:
                self.now, _, do, args = heapq.heappop(self._planned)
                do(*args)
        self.now = until


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Thousands of simulated loads and evictions are not for the log; what comes after in this process is."""
    log = logging.getLogger("shoal")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
