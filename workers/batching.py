"""Which model runs next, which of its entries make the batch. Pure: `now` comes in, only choices go out."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.families import Prepared

# how much faster waiting counts in each lane, most urgent first
LANE_WEIGHTS = (8.0, 1.0)
# added to every age, so that of two entries that just arrived the urgent one leads
HEAD_START_S = 0.01
# of the cost of batches, what lower lanes get at least while more urgent work could fill them all
LOWER_LANES_SHARE = 1 / 16
# batches of cost that a caller may be ahead of those who have had least, and so has to wait for at most
MOST_AHEAD_BATCHES = 2
PACE_MEMORY = 0.98
# forwards that must have been seen before their mean counts as the pace, and how much larger ones it may speak for
ALIKE_FORWARDS = 5
ALIKE = 1.2


@dataclass(slots=True, eq=False)
class Entry:
    """One part of an item waiting for its forward; `job` is the dispatcher's, opaque here."""

    job: Any
    index: int  # of the item
    prepared: Prepared
    arrival: float
    lane: int = 0
    caller: str | None = None  # prefix of the API key: callers who compete get equal shares
    crashes: int = 0  # forwards it was in that took the engine down or failed
    part: int = 0  # of the item

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


@dataclass(slots=True)
class Shares:
    """What the callers of one model have had, so that those who compete get equal cost, and what lower lanes are owed.

    Start-time fair queueing: an entry's turn is the cost that its caller has had plus the cost of the caller's older
    entries, and the least turn is first. Who comes anew starts where the least served of those who wait stands, so that
    neither a past flood nor a past silence counts for long. A lone caller is served as if there were no shares.
    """

    had: dict[tuple[int, str | None], float] = field(default_factory=dict)  # cost, by lane and caller
    floors: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))  # the least of those, by lane
    owed: float = 0.0  # cost, to the lanes below the first
    largest: int = 0  # cost of a batch so far

    def start(self, entry: Entry) -> float:
        """The turn of its caller's next entry."""
        return max(self.had.get((entry.lane, entry.caller), 0.0), self.floors[entry.lane])

    def lead(self, entries: Sequence[Entry], now: float) -> Entry:
        """The entry that must be in the next batch: the oldest of the caller whose turn it is, in the oldest's lane."""
        lane = oldest(entries, now).lane
        lower = [entry for entry in entries if entry.lane > 0]
        if lane == 0 and lower and (due := self._next(lower, now)).cost <= self.owed:
            return due
        return self._next([entry for entry in entries if entry.lane == lane], now)

    def _next(self, entries: Sequence[Entry], now: float) -> Entry:
        least = min(map(self.start, entries))
        return oldest((entry for entry in entries if self.start(entry) == least), now)

    def turns(self, entries: Iterable[Entry]) -> dict[int, float]:
        """Turns by the id of the entry."""
        found: dict[int, float] = {}
        next_turns: dict[tuple[int, str | None], float] = {}
        for entry in sorted(entries, key=lambda entry: entry.arrival):
            caller = entry.lane, entry.caller
            found[id(entry)] = next_turns.get(caller, self.start(entry))
            next_turns[caller] = found[id(entry)] + entry.cost
        return found

    def charge(self, waiting: Sequence[Entry], batch: Sequence[Entry]) -> None:
        """Book a batch formed from what was `waiting`.

        A floor is the least turn of those who are left: who is always served at once must not hold it down.
        """
        for entry in batch:
            self.had[entry.lane, entry.caller] = self.start(entry) + entry.cost
        taken = set(map(id, batch))
        left: dict[int, list[float]] = {entry.lane: [] for entry in waiting}
        for entry in waiting:
            if id(entry) not in taken:
                left[entry.lane].append(self.start(entry))
        for lane, starts in left.items():  # where nobody competes any more all start even again
            self.floors[lane] = min(starts) if starts else max(had for who, had in self.had.items() if who[0] == lane)
        self._forget_old(sum(entry.cost for entry in batch))
        self.owed = self._owed_after(batch) if len(left) > 1 else 0.0

    def _forget_old(self, batch_cost: int) -> None:
        """Who filled room that nobody else's entries fitted into is not made to wait for more than a few batches."""
        self.largest = max(self.largest, batch_cost)
        most = {lane: floor + MOST_AHEAD_BATCHES * self.largest for lane, floor in self.floors.items()}
        self.had = {
            caller: min(had, most[caller[0]]) for caller, had in self.had.items() if had > self.floors[caller[0]]
        }

    def _owed_after(self, batch: Sequence[Entry]) -> float:
        """Below nothing after a batch that they led: it was theirs whole if its forwards differ from urgent ones."""
        given = sum(entry.cost for entry in batch if entry.lane > 0)
        least = -self.largest if batch[0].lane > 0 else min(self.owed, 0.0)
        return max(self.owed + LOWER_LANES_SHARE * sum(entry.cost for entry in batch) - given, least)


def form_batch(
    entries: Sequence[Entry], *, now: float, budget: int, max_items: int, packed: bool, shares: Shares | None = None
) -> list[Entry]:
    """The anchor and, around it, what fits: urgent lanes first, by turns where callers compete, else nearest lengths
    first where padded.

    The anchor is the oldest entry; of callers who compete, the oldest of the one whose turn it is. Only an entry larger
    than the budget exceeds it, and such an entry runs alone. `entries` must not be empty.
    """
    shares = shares or Shares()
    anchor = shares.lead(entries, now)
    builder = BatchBuilder(budget, max_items, packed)
    builder.add(anchor)
    kin = [entry for entry in entries if entry.prepared.key == anchor.prepared.key]
    ranks = _ranks(kin, anchor, shares, budget, packed)

    def order(entry: Entry) -> tuple[int, float, int, float]:
        return *ranks[id(entry)], 0 if packed else abs(entry.cost - anchor.cost), entry.arrival

    for mate in sorted((entry for entry in kin if entry is not anchor), key=order):
        if not builder.add(mate) and len(builder.entries) >= max_items:
            break
    return builder.entries


def _ranks(
    kin: Sequence[Entry], anchor: Entry, shares: Shares, budget: int, packed: bool
) -> dict[int, tuple[int, float]]:
    """By id: the lane, where entries that are owed their place come before all lanes, and the round within the lane.

    Without competition there is one round. Where batches are padded a round is as much as the callers can have of one
    batch, so that lengths may still be matched within it.
    """
    callers: dict[int, set[str | None]] = {}
    for entry in kin:
        callers.setdefault(entry.lane, set()).add(entry.caller)
    if len(callers) == 1 and all(len(names) == 1 for names in callers.values()):
        return {id(entry): (entry.lane, 0.0) for entry in kin}
    turns = shares.turns(kin)
    owed = shares.owed - (anchor.cost if anchor.lane > 0 else 0)
    ranks: dict[int, tuple[int, float]] = {}
    for entry in sorted(kin, key=lambda entry: turns[id(entry)]):
        lane, turn = entry.lane, turns[id(entry)] - shares.floors[entry.lane]
        if lane > 0 and entry is not anchor:
            owed -= entry.cost
            lane = -1 if owed >= 0 else lane
        competing = len(callers[entry.lane])
        width = 1.0 if packed else budget / competing
        ranks[id(entry)] = lane, turn // width if competing > 1 else 0.0
    return ranks


@dataclass(slots=True)
class Mix:
    """What a model's batches were made of lately; `estimated` is what gateways took the cost for."""

    items: float = 0.0
    cost: float = 0.0
    estimated: float = 0.0
    forward_s: float = 0.0
    device_s: float = 0.0  # the same with the ways to the engine and back

    def observe(self, items: int, cost: int, estimated: float, forward_s: float, device_s: float) -> None:
        self.items = self.items * PACE_MEMORY + items
        self.cost = self.cost * PACE_MEMORY + cost
        self.estimated = self.estimated * PACE_MEMORY + estimated
        self.forward_s = self.forward_s * PACE_MEMORY + forward_s
        self.device_s = self.device_s * PACE_MEMORY + max(device_s, forward_s)

    def estimated_rate(self, rate: float) -> float:
        """What a rate of cost per second of forwards is in estimated cost per second of the device's time."""
        return rate * self.estimated / self.cost * self.forward_s / max(self.device_s, 1e-9)

    def full_batch(self, budget: int, max_items: int) -> float:
        """Cost of a batch that more work could not make larger."""
        item = self.cost / self.items
        return max(min(budget, max_items * item), item)


@dataclass(slots=True)
class Pace:
    """Learned time of a forward of one model on one device, as `fixed + rate * cost`, and the budget it allows.

    An ordinary least-squares line over past forwards in which older ones fade (each new one weighs 2 % of the past),
    so that a change of neighbours or clock speed is followed.
    """

    ceiling: int | None = None  # lowered after an out-of-memory, never raised again
    fits: int = 0  # the highest cost that ran, as far as nothing spoke against it since
    weight: float = 0.0
    mean_cost: float = 0.0
    mean_s: float = 0.0
    spread: float = 0.0  # weighted sums of squares and products around the means
    covariance: float = 0.0

    def observe(self, cost: int, seconds: float) -> None:
        """Take in one forward (West's weighted update, with fading)."""
        self.fits = max(self.fits, cost)
        self.weight = self.weight * PACE_MEMORY + 1.0
        share = 1.0 / self.weight
        off_cost, off_s = cost - self.mean_cost, seconds - self.mean_s
        self.mean_cost += share * off_cost
        self.mean_s += share * off_s
        self.spread = PACE_MEMORY * self.spread + off_cost * (cost - self.mean_cost)
        self.covariance = PACE_MEMORY * self.covariance + off_cost * (seconds - self.mean_s)

    def lower(self, failed_cost: int) -> None:
        """Remember that `failed_cost` did not fit into memory, unless as much did before.

        Then one item may ask for more than its cost, which is found by halves and must not make all batches small; if
        memory has really shrunk, the next failure finds `fits` lower than its cost.
        """
        if failed_cost <= self.fits:
            self.fits = failed_cost // 2
            return
        self.ceiling = max(min(self.ceiling or failed_cost, failed_cost // 2), self.fits, 1)

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

    def rate(self, cost: float) -> float | None:
        """Cost a second in forwards of `cost` each; None when unknown."""
        line = self.line()
        if line is not None:
            return cost / max(line[0] + line[1] * cost, 1e-9)
        if self.weight >= ALIKE_FORWARDS and cost <= ALIKE * self.mean_cost:  # they cannot grow, so they show no line
            return self.mean_cost / max(self.mean_s, 1e-9)
        return None

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
