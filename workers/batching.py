"""Which model runs next, which of its entries make the batch. Pure: `now` comes in, only choices go out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.families import Prepared

# how much faster waiting counts in each lane, most urgent first
LANE_WEIGHTS = (8.0, 1.0)
# added to every age, so that of two entries that just arrived the urgent one leads
HEAD_START_S = 0.01
PACE_MEMORY = 0.98


@dataclass(slots=True, eq=False)
class Entry:
    """One prepared item waiting for its forward; `job` is the dispatcher's, opaque here."""

    job: Any
    index: int
    prepared: Prepared
    arrival: float
    lane: int = 0
    crashes: int = 0  # forwards it was in that took the engine down or failed

    @property
    def cost(self) -> int:
        return self.prepared.cost


def weighted_age(entry: Entry, now: float) -> float:
    """Seconds waited times the lane's weight: what decides who goes first."""
    return (now - entry.arrival + HEAD_START_S) * LANE_WEIGHTS[entry.lane]


def oldest(entries: Iterable[Entry], now: float) -> Entry:
    """The entry that must be in the next batch of its model."""
    return max(entries, key=lambda entry: weighted_age(entry, now))


def batch_cost(costs: Sequence[int], packed: bool) -> int:
    """What a forward over these entries costs: the plain sum where the family packs, longest times count else."""
    return sum(costs) if packed else max(costs) * len(costs)


@dataclass(slots=True)
class BatchBuilder:
    """Holds the budget while one batch is filled, then is thrown away."""

    budget: int
    max_items: int
    packed: bool
    entries: list[Entry] = field(default_factory=list)
    total: int = 0
    longest: int = 0

    def add(self, entry: Entry) -> bool:
        """Take `entry` if the batch stays within budget; the first one is always taken."""
        total, longest = self.total + entry.cost, max(self.longest, entry.cost)
        cost = total if self.packed else longest * (len(self.entries) + 1)
        if self.entries and (cost > self.budget or len(self.entries) >= self.max_items):
            return False
        self.entries.append(entry)
        self.total, self.longest = total, longest
        return True


def form_batch(entries: Sequence[Entry], *, now: float, budget: int, max_items: int, packed: bool) -> list[Entry]:
    """The anchor (oldest entry) and, around it, what fits: urgent lanes first, nearest lengths first where padded.

    Only an entry larger than the budget exceeds it, and such an entry runs alone. `entries` must not be empty.
    """
    anchor = oldest(entries, now)
    builder = BatchBuilder(budget, max_items, packed)
    builder.add(anchor)

    def nearness(entry: Entry) -> tuple[int, int, float]:
        return entry.lane, 0 if packed else abs(entry.cost - anchor.cost), entry.arrival

    mates = (entry for entry in entries if entry is not anchor and entry.prepared.key == anchor.prepared.key)
    for mate in sorted(mates, key=nearness):
        if not builder.add(mate) and len(builder.entries) >= max_items:
            break
    return builder.entries


@dataclass(slots=True)
class Pace:
    """Learned time of a forward of one model on one device, as `fixed + rate * cost`, and the budget it allows.

    An ordinary least-squares line over past forwards in which older ones fade (each new one weighs 2 % of the past),
    so that a change of neighbours or clock speed is followed.
    """

    ceiling: int | None = None  # lowered after an out-of-memory, never raised again
    weight: float = 0.0
    mean_cost: float = 0.0
    mean_s: float = 0.0
    spread: float = 0.0  # weighted sums of squares and products around the means
    covariance: float = 0.0

    def observe(self, cost: int, seconds: float) -> None:
        """Take in one forward (West's weighted update, with fading)."""
        self.weight = self.weight * PACE_MEMORY + 1.0
        share = 1.0 / self.weight
        off_cost, off_s = cost - self.mean_cost, seconds - self.mean_s
        self.mean_cost += share * off_cost
        self.mean_s += share * off_s
        self.spread = PACE_MEMORY * self.spread + off_cost * (cost - self.mean_cost)
        self.covariance = PACE_MEMORY * self.covariance + off_cost * (seconds - self.mean_s)

    def lower(self, failed_cost: int) -> None:
        """Remember that `failed_cost` did not fit into memory."""
        self.ceiling = min(self.ceiling or failed_cost, max(failed_cost // 2, 1))

    def line(self) -> tuple[float, float] | None:
        """Seconds fixed and per cost; None while the costs seen are too alike to tell the two apart."""
        if self.weight < 2 or self.spread / self.weight < (0.1 * self.mean_cost) ** 2:
            return None
        rate = max(self.covariance / self.spread, 0.0)
        return max(self.mean_s - rate * self.mean_cost, 0.0), rate

    def predict(self, cost: int) -> float | None:
        """Seconds a forward of `cost` will take; None when unknown."""
        line = self.line()
        if line is not None:
            return line[0] + line[1] * cost
        return self.mean_s * max(cost / self.mean_cost, 1.0) if self.weight else None

    def budget(self, limit: int, target_s: float) -> int:
        """Cost for one batch: the catalog's limit, memory's ceiling, and what runs in about `target_s`."""
        bounds = [limit]
        if self.ceiling is not None:
            bounds.append(self.ceiling)
        line = self.line()
        if line is not None and line[1] > 0:
            # a model whose fixed time alone exceeds the target still gets batches worth that fixed time
            bounds.append(int(max(target_s - line[0], line[0]) / line[1]))
        return max(min(bounds), 1)
