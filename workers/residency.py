"""Who is on the device and who must leave. Pure: one ledger of bytes, one function that plans room."""

from collections.abc import Iterable
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True)
class Resident:
    """A model on the device, as eviction sees it."""

    digest: str
    size: int
    last_used: float
    pinned: bool = False
    leased: bool = False  # a forward is running, or a promise holds it
    keeps_place: bool = False  # it has backlog and its quantum is not over


@dataclass(frozen=True, slots=True)
class Room:
    """What must happen before a load: evict these (maybe none), wait for somebody to finish, or never."""

    evict: tuple[str, ...] = ()
    wait: bool = False
    impossible: bool = False


def plan_room(capacity: int, free: int, need: int, residents: Iterable[Resident]) -> Room:
    """Make `need` bytes free with the fewest evictions in least-recently-used order.

    Pinned models never leave; a model that can never fit beside them is impossible and evicts nobody.
    """
    residents = list(residents)
    if need > capacity - sum(resident.size for resident in residents if resident.pinned):
        return Room(impossible=True)
    missing = need - free
    chosen: list[Resident] = []
    for resident in sorted(residents, key=lambda r: r.last_used):
        if missing <= 0:
            break
        if resident.pinned or resident.leased or resident.keeps_place:
            continue
        chosen.append(resident)
        missing -= resident.size
    if missing > 0:
        return Room(wait=True)
    return Room(evict=tuple(resident.digest for resident in _without_spares(chosen, -missing)))


def _without_spares(chosen: list[Resident], surplus: int) -> list[Resident]:
    """Keep the most recently used of the chosen where the others already make enough room."""
    kept = list(chosen)
    for resident in reversed(chosen):
        if resident.size <= surplus:
            kept.remove(resident)
            surplus -= resident.size
    return kept
