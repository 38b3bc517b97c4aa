"""Which worker loads a model that has messages waiting. Pure: each worker decides for itself.

A worker that has the model takes its messages at once. One that would have to load it leaves them to others for a
while: the longer the load and the loads it brings after it, the longer; the more work waits, the shorter. So work goes
where its model is without a router, and a model spreads to more workers only when those that have it do not keep up.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from workers.batching import LANE_WEIGHTS

# time for one worker to take what another looks at too
SETTLE_S = 0.05
# the share of a load's time that messages wait for a worker that has the model already
PATIENCE = 0.25
# whatever it costs, after so long a message is taken
LONGEST_DELAY_S = 5.0
# what a load is taken for that nobody has seen yet
UNKNOWN_LOAD_S = 2.0
# loads brought about that bulk work may cause where it could also wait for a worker that has the model
BULK_LOST_S = 0.1


@dataclass(frozen=True, slots=True)
class Leaver:
    """A model that may have to make room: its bytes, and the seconds of loading that would soon be repeated."""

    size: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What a dispatcher tells of its device, for the thread that takes messages."""

    here: frozenset[str] = frozenset()  # names of models whose messages it takes at once
    can_load: bool = True  # a load could start now
    pressing: float = 0.0  # weighted age of the oldest work it holds
    free: int = 0  # bytes
    leavers: tuple[Leaver, ...] = ()  # who would make room, in order
    wakes: Mapping[str, float] = field(default_factory=dict)  # seconds, of models that wait in the host's memory

    def lost_s(self, size: int) -> float:
        """Seconds of loading that a new model of `size` brings after its own; infinite if there is no room to make."""
        missing, lost_s = size - self.free, 0.0
        for leaver in self.leavers:
            if missing <= 0:
                break
            missing -= leaver.size
            lost_s += leaver.lost_s
        return math.inf if missing > 0 else lost_s


@dataclass(frozen=True, slots=True)
class Offer:
    """A queue with messages whose model this worker does not have."""

    queue: str
    waited_s: float  # its oldest message
    backlog_s: float = 0.0  # device time of all its messages
    load_s: float = UNKNOWN_LOAD_S
    lost_s: float = 0.0  # see Standing
    lane: int = 0
    held_elsewhere: bool = False  # another worker has the model, or is loading it


def claim_delay(offer: Offer) -> float:
    """Seconds that its oldest message must have waited."""
    delay = SETTLE_S + offer.lost_s
    if offer.held_elsewhere:
        delay += PATIENCE * offer.load_s * offer.load_s / (offer.load_s + offer.backlog_s)
    return min(delay, LONGEST_DELAY_S)


def best_claim(offers: Iterable[Offer], pressing: float) -> Offer | None:
    """The most urgent offer whose oldest message, its delay taken off, has waited longer than what presses here."""
    taken = [offer for offer in offers if _is_worth_it(offer) and _weight(offer) >= max(pressing, 0.0)]
    return max(taken, key=_weight, default=None)


def _weight(offer: Offer) -> float:
    return (offer.waited_s - claim_delay(offer)) * LANE_WEIGHTS[offer.lane]


def _is_worth_it(offer: Offer) -> bool:
    """Bulk work pushes nobody out where it may as well wait, however long it has waited: live work would pay for it."""
    return offer.lane == 0 or not offer.held_elsewhere or offer.lost_s <= BULK_LOST_S
