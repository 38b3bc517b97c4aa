"""Which of the loaded models runs next. Pure.

By age alone an old backlog of one model would keep every fresh call of the others waiting until it is done. By equal
turns alone a model that everybody asks for would fall behind for the sake of those hardly used, and under saturation
all would wait longer. So age decides, unless it would hold the device for long: then half of the time goes by turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

# of the one whose turn it is by age: when it holds more work than this, others get turns beside it
LONG_S = 2.0
# how much time for turns may be saved up while nobody else asks, so that a newcomer's first call goes next
SAVED_S = 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A model with work that could run now: how urgent its oldest entry is, its most urgent lane, and all it holds."""

    digest: str
    urgency: float
    lane: int = 0
    work_s: float = 0.0  # device time


@dataclass(slots=True)
class Turns:
    """Device seconds that models have had, as start-time fair queueing counts them.

    The least served goes first. Who comes anew starts where the least served of those who compete stands, so that
    neither a past flood nor a past silence counts.
    """

    had: dict[str, float] = field(default_factory=dict)  # of those ahead of the floor
    floor: float = 0.0
    owed: float = 0.0  # device seconds, to turns

    def start(self, claim: Claim) -> float:
        return max(self.had.get(claim.digest, 0.0), self.floor)

    def next(self, claims: Sequence[Claim]) -> Claim:
        """The claim that has waited longest or, where it would take long, the least served as often."""
        eldest = max(claims, key=lambda claim: claim.urgency)
        if self.owed <= 0 or eldest.work_s <= LONG_S:
            return eldest
        equals = [claim for claim in claims if claim.lane <= eldest.lane]
        return min(equals, key=lambda claim: (claim.lane, self.start(claim), -claim.urgency))

    def charge(self, claims: Sequence[Claim], chosen: Claim, seconds: float) -> None:
        """Book a batch of the one chosen from `claims`, which is taken to last so long."""
        eldest = max(claims, key=lambda claim: claim.urgency)
        self.owed = min(self.owed + (seconds if chosen == eldest else -seconds), SAVED_S)
        self.floor = min(map(self.start, claims))
        self.had[chosen.digest] = self.start(chosen) + seconds
        self.had = {digest: had for digest, had in self.had.items() if had > self.floor}
