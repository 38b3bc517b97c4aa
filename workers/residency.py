"""Who is on the device and who must leave. Pure: one ledger of bytes, one function that plans room."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

# requests so long ago count a third of one now; simulated, the reloads of 10 to 300 s are all more than those of this
DEMAND_MEMORY_S = 20.0
# a model that returns within this time was evicted too early
CHURN_WINDOW_S = 600.0
# so many early returns within the window, by more than one model, are thrashing
CHURN_RETURNS = 6


@dataclass(slots=True)
class Ledger:
    """Bytes promised and held on one device, over all its engines, by model digest."""

    capacity: int
    held: dict[str, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(self.held.values())

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def reserve(self, digest: str, size: int) -> None:
        """Promise `size` to a load about to start. Raises ValueError when it does not fit: plan room first."""
        if size > self.free + self.held.get(digest, 0):
            raise ValueError(f"{size} bytes do not fit into {self.free} free")
        self.held[digest] = size

    def settle(self, digest: str, size: int) -> None:
        """Replace the promise by what was measured after the load."""
        self.held[digest] = size

    def release(self, digest: str) -> None:
        """The device confirmed that this model's memory is free."""
        self.held.pop(digest, None)


@dataclass(slots=True)
class Demand:
    """How often a model was asked for lately: a count of requests in which older ones fade."""

    count: float = 0.0
    at: float = 0.0

    def add(self, now: float) -> None:
        self.count, self.at = self.lately(now) + 1.0, now

    def lately(self, now: float) -> float:
        return self.count * math.exp((self.at - now) / DEMAND_MEMORY_S)


@dataclass(frozen=True, slots=True)
class Resident:
    """A model on the device, as eviction sees it."""

    digest: str
    size: int
    last_used: float
    worth: float = 0.0  # of each byte it holds: recent demand times what a reload takes, over its size
    pinned: bool = False
    leased: bool = False  # a forward is running, or a promise holds it
    leaving: bool = False  # told to; its bytes are not free before the device says so
    keeps_place: bool = False  # it has backlog and its quantum is not over


@dataclass(frozen=True, slots=True)
class Room:
    """What must happen before a load: evict these (maybe none), wait for somebody to finish, or never."""

    evict: tuple[str, ...] = ()
    wait: bool = False
    impossible: bool = False


def plan_room(capacity: int, free: int, need: int, residents: Iterable[Resident]) -> Room:
    """Make `need` bytes free with the fewest evictions in the order of `leaving_order`.

    Pinned models never leave; a model that can never fit beside them is impossible and evicts nobody. What is leaving
    already is waited for: nobody else must go for it.
    """
    residents = list(residents)
    if need > capacity - sum(resident.size for resident in residents if resident.pinned):
        return Room(impossible=True)
    missing = need - free - sum(resident.size for resident in residents if resident.leaving)
    chosen: list[Resident] = []
    for resident in leaving_order(residents):
        if missing <= 0:
            break
        if resident.pinned or resident.leased or resident.leaving or resident.keeps_place:
            continue
        chosen.append(resident)
        missing -= resident.size
    if missing > 0:
        return Room(wait=True)
    evict = tuple(resident.digest for resident in _without_spares(chosen, -missing))
    return Room(evict, wait=not evict and need > free)


def leaving_order(residents: Iterable[Resident]) -> list[Resident]:
    """Who is worth least first; where nothing is known of demand, the least recently used."""
    return sorted(residents, key=lambda resident: (resident.worth, resident.last_used))


def plan_parking(capacity: int, parked: Iterable[Resident], newcomer: Resident) -> tuple[str, ...] | None:
    """Who leaves the host's memory for one that leaves the device; None when its place would cost more than it saves.

    That is when it does not fit, or only in place of what is worth more together, or must not leave.
    """
    parked = list(parked)
    missing = newcomer.size - (capacity - sum(resident.size for resident in parked))
    chosen: list[Resident] = []
    for resident in leaving_order(parked):
        if missing <= 0:
            break
        if not resident.leased:
            chosen.append(resident)
            missing -= resident.size
    kept = _without_spares(chosen, -missing)
    lost = sum(resident.worth * resident.size for resident in kept)
    if missing > 0 or (kept and lost > newcomer.worth * newcomer.size):
        return None
    return tuple(resident.digest for resident in kept)


def finishes_first(held_s: float, asked_s: float, load_s: float) -> bool:
    """Whether a model that must leave first does what it holds: else it would be loaded again for just that.

    It was asked to leave `asked_s` ago, and neither that nor the work may take longer than a load.
    """
    return held_s < load_s and asked_s < load_s


def _without_spares(chosen: list[Resident], surplus: int) -> list[Resident]:
    """Keep the last in order of the chosen where the others already make enough room."""
    kept = list(chosen)
    for resident in reversed(chosen):
        if resident.size <= surplus:
            kept.remove(resident)
            surplus -= resident.size
    return kept


@dataclass(slots=True)
class Churn:
    """Notices that models push each other off the device again and again: their set does not fit."""

    evicted: dict[str, float] = field(default_factory=dict)
    returns: deque[tuple[float, str]] = field(default_factory=deque)

    def leave(self, digest: str, now: float) -> None:
        self.evicted[digest] = now

    def come(self, digest: str, now: float) -> None:
        """A load began; it is a return when the model was here a short while ago."""
        left = self.evicted.pop(digest, None)
        if left is not None and now - left < CHURN_WINDOW_S:
            self.returns.append((now, digest))

    def thrashing(self, now: float) -> tuple[str, ...]:
        """Digests of the models that keep returning; empty while all is well."""
        while self.returns and now - self.returns[0][0] > CHURN_WINDOW_S:
            self.returns.popleft()
        models = tuple(dict.fromkeys(digest for _, digest in self.returns))
        return models if len(self.returns) >= CHURN_RETURNS and len(models) > 1 else ()
