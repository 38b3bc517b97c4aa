"""What was published to a queue in the past, which tells what its last messages cost. Pure.

Gateways count all that they publish and never subtract. A queue is served in order, so those that wait are the last
ones published; how many there are the broker says. Thus a count that is missing bends an average for a while, and
nothing can drift.
"""

from collections import deque
from dataclasses import dataclass

POINTS = 600


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages, their items and their cost."""

    messages: int = 0
    items: int = 0
    cost: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.messages + other.messages, self.items + other.items, self.cost + other.cost)

    def share(self, messages: int) -> "Counts":
        """So many messages of the same kind; of those about which nothing is known, the least."""
        if not self.messages:
            return Counts(messages, messages, messages)
        part = messages / self.messages
        return Counts(messages, round(self.items * part), round(self.cost * part))


@dataclass(frozen=True, slots=True)
class Point:
    """All that had been published by `at`, a unix time; None: nobody knows when."""

    at: float | None
    total: Counts


class History:
    """The totals of one queue as they were at past looks."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque([Point(None, Counts())], maxlen=POINTS)

    def __len__(self) -> int:
        return len(self._points)

    def note(self, now: float, total: Counts, waiting: int) -> None:
        """Remember a look at `now`; `waiting` messages are at the broker, so older points are of no more use."""
        if total.messages < self._points[-1].total.messages:  # Redis has lost the counts
            self._points = deque([Point(None, Counts())], maxlen=POINTS)
        if total == self._points[-1].total:
            self._points.pop()  # nothing was published since, so the newer look says more
        self._points.append(Point(now, total))
        while len(self._points) > 1 and self._points[1].total.messages <= total.messages - waiting:
            self._points.popleft()

    def last(self, messages: int) -> Counts:
        """About what the last so many messages are."""
        base, latest = self._points[0].total, self._points[-1].total
        gone = Counts(-base.messages, -base.items, -base.cost)
        return (latest + gone).share(messages) if latest != base else latest.share(messages)

    @property
    def oldest(self) -> float | None:
        """When those that waited at the last look began to be published; None when that was before the first look."""
        return self._points[0].at
