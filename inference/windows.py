"""How much of one key's work may lie in one queue, so that a flood of one key does not stand before another's call.

The broker's queues are in order of arrival whatever the key. What a key has beyond its window waits in the gateway
and follows as answers come. A window is as much as keeps the model's workers busy, so a lone key loses nothing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from inference.calls import Accepted
from inference.forecast import Forecast

# two batches that a worker holds and one on the way
BATCHES = 3
LEAST_S = 0.1  # in which replies come back and the next requests reach a worker
# cost, while nobody knows the pace
UNKNOWN_COST = 8192.0


def window_cost(forecast: Forecast | None) -> float:
    """Of one key, in the queue of a model with this forecast."""
    if forecast is None:
        return UNKNOWN_COST
    # a model that has yet to be loaded gathers what pays for its load
    return forecast.rate * (max(BATCHES * forecast.batch_s, LEAST_S) + forecast.load_s)


@dataclass(slots=True, eq=False)
class _Window:
    """One key in one queue."""

    sent: float = 0.0  # cost that is unanswered
    held: float = 0.0  # cost that waits here
    waiting: deque[tuple[asyncio.Future[None], float]] = field(default_factory=deque)

    def release(self, limit: float) -> None:
        while self.waiting:
            turn, cost = self.waiting[0]
            if not turn.done() and self.sent > 0 and self.sent + cost > limit:
                return
            self.waiting.popleft()
            if not turn.done():
                self.held -= cost
                self.sent += cost
                turn.set_result(None)


class Windows:
    """Owned by the event loop. `forecast` is of a model and lane."""

    def __init__(self, forecast: Callable[[str, str], Forecast | None]) -> None:
        self._forecast = forecast
        self._windows: dict[tuple[str, str | None], _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def held(self, accepted: Accepted) -> float:
        """Cost of the same key that waits here before a new request."""
        window = self._windows.get((accepted.queue, accepted.request.key))
        return window.held if window else 0.0

    @contextlib.contextmanager
    def place(self, accepted: Accepted) -> Iterator["asyncio.Future[None]"]:
        """A future that is done when the request may go to the broker; the end of the block lets the next one go."""
        name, cost = (accepted.queue, accepted.request.key), float(accepted.request.cost)
        window = self._windows.setdefault(name, _Window())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        window.waiting.append((turn, cost))
        window.held += cost
        self._release(window, accepted)
        try:
            yield turn
        finally:
            if turn.cancel():
                window.held -= cost
            else:
                window.sent -= cost
            self._release(window, accepted)
            if not window.waiting and self._windows.get(name) is window and window.sent <= 0:
                del self._windows[name]

    def _release(self, window: _Window, accepted: Accepted) -> None:
        window.release(window_cost(self._forecast(accepted.spec.model, accepted.request.lane)))
