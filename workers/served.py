"""One model as a worker serves it: its files, its preparer, its place on the device, its backlog."""

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from catalog.snapshot import Model
from protocol.errors import ShoalError
from protocol.spec import ModelSpec
from workers.batching import Entry, Mix, Pace, Shares, oldest, weighted_age
from workers.jobs import Job
from workers.prepare import Files
from workers.residency import Demand
from workers.turns import Claim


class State(StrEnum):
    """Where the weights are. Preparing items needs only the files, so it may go on in every state but ABSENT."""

    ABSENT = "absent"  # not asked for yet, or evicted before
    FETCHING = "fetching"  # files are being found, downloaded or converted
    WAITING = "waiting"  # files are here, the device has no room yet
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"  # until `retry_at`, callers get `error` at once


@dataclass(slots=True, eq=False)
class ServedModel:
    """All state of one model, owned by the dispatcher thread."""

    model: Model
    last_used: float
    state: State = State.ABSENT
    files: Files | None = None
    need: int = 0  # bytes, estimated until loaded, then measured
    packed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    progress: float = 0.0
    error: ShoalError | None = None
    failures: int = 0
    retry_at: float = 0.0
    loaded_at: float = 0.0
    load_s: float = 0.0  # the last load from its files took so long
    wake_s: float = 0.0  # so long it wakes from the host's memory, measured or expected; 0: there is no place for it
    in_host: bool = False  # the host's memory has a copy of its weights, kept while it is on the device too
    can_park: bool = False
    demand: Demand = field(default_factory=Demand)
    pace: Pace = field(default_factory=Pace)
    mix: Mix = field(default_factory=Mix)
    shares: Shares = field(default_factory=Shares)
    arrivals: list[Job] = field(default_factory=list)  # requests waiting for the preparer
    entries: list[Entry] = field(default_factory=list)
    suspects: list[list[Entry]] = field(default_factory=list)  # parts of a failed batch, each runs as it is
    forwards: int = 0  # in flight now; a lease: it is not evicted meanwhile
    leaving_since: float | None = None  # another model needs its room: it does what it held then, and takes no more
    yielding: bool = False  # it leaves when its running forwards are back: no new ones
    largest: tuple[int, int] = (0, 0)  # most items and highest cost in one forward so far

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    @property
    def has_work(self) -> bool:
        return bool(self.arrivals or self.entries or self.suspects)

    @property
    def can_run(self) -> bool:
        return self.state is State.LOADED and not self.yielding and bool(self.entries or self.suspects)

    @property
    def is_idle(self) -> bool:
        return not (self.has_work or self.forwards or self.is_pinned)

    @property
    def is_pinned(self) -> bool:
        return self.model.pinned

    def failure(self, now: float) -> ShoalError | None:
        """Why callers are refused at once, while the cooldown of a failed load lasts."""
        return self.error if self.state is State.FAILED and now < self.retry_at else None

    def urgency(self, now: float) -> float:
        """How long its longest waiting work has waited, weighted by lane."""
        waiting = [*self.entries, *chain(*self.suspects)]
        if waiting:
            return weighted_age(oldest(waiting, now), now)
        return max((now - job.arrival for job in self.arrivals), default=0.0)

    def claim(self, now: float, budget: int) -> Claim:
        """What it brings forward when the next batch is given out; only for one that can run."""
        waiting = [*self.entries, *chain(*self.suspects)]
        lane = min(entry.lane for entry in waiting)
        cost = sum(entry.cost for entry in waiting)
        batches = max(len(waiting) / self.spec.max_items, cost / budget, 1.0)
        work_s = batches * (self.pace.predict(round(cost / batches)) or 0.0)
        return Claim(self.spec.digest, weighted_age(oldest(waiting, now), now), lane, work_s)

    @property
    def is_parked(self) -> bool:
        """In the host's memory only, and not on its way."""
        return self.in_host and self.state in (State.ABSENT, State.WAITING)

    @property
    def return_s(self) -> float:
        """What it will take to have it back if it leaves the device."""
        return self.wake_s or self.load_s

    def worth(self, now: float) -> float:
        """Of each byte it holds on the device: how much would be lost if it left."""
        return self.demand.lately(now) * self.return_s / max(self.need, 1)

    def work_s(self, until: float) -> float | None:
        """Device time of the work that it held at `until` and has not done; None when there is none."""
        held = [entry for entry in [*self.entries, *chain(*self.suspects)] if entry.arrival <= until]
        return self.pace.predict(sum(entry.cost for entry in held)) or 0.0 if held else None

    def full_batches(self, budget: int) -> tuple[float | None, float | None]:
        """Of the cost that gateways estimate, what a second of full batches does, and one's time; None when unknown."""
        if not self.mix.estimated:
            return None, None
        full = self.mix.full_batch(budget, self.spec.max_items)
        rate = self.pace.rate(full)
        return (self.mix.estimated_rate(rate), full / rate) if rate else (None, None)

    def oldest(self) -> dict[str, float]:
        """When the oldest request that waits here was published, by lane."""
        found: dict[str, float] = {}
        for request in (job.request for job in [*self.arrivals, *(entry.job for entry in self.entries)]):
            found[request.lane] = min(request.published, found.get(request.lane, request.published))
        return found

    def status(self, now: float, budget: int) -> dict[str, Any]:
        """What the beat says of it."""
        rate, batch_s = self.full_batches(budget)
        return {
            "model": self.spec.model,
            "digest": self.spec.digest,
            "state": "parked" if self.in_host and self.state is State.ABSENT else str(self.state),
            "in_host": self.in_host,
            "bytes": self.need,
            "progress": round(self.progress, 3),
            "packed": self.packed,
            "facts": self.facts,
            "pinned": self.model.pinned,
            "idle_s": round(now - self.last_used, 1),
            "load_s": round(self.load_s, 3),
            "wake_s": round(self.wake_s, 4),
            "pace": self.pace.line(),
            "rate": rate,
            "batch_s": batch_s,
            "oldest": self.oldest(),
            "waiting": len(self.entries) + len(self.arrivals),
            "waiting_cost": sum(entry.cost for entry in self.entries),
            "ceiling": self.pace.ceiling,
            "retry_in_s": round(max(self.retry_at - now, 0.0), 1) if self.state is State.FAILED else 0.0,
            "largest_batch": {"items": self.largest[0], "cost": self.largest[1]},
            "error": self.error.to_wire() if self.error else None,
        }
