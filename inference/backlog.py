"""What waits for each model and lane, for `GET /v1/queues` and Prometheus. Only models of the catalog are named."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from catalog.snapshot import Snapshot
from inference.fleet import Fleet
from inference.published import Counts
from inference.queues import QueueReader, Queues
from protocol import names
from protocol.spec import ModelSpec

NOTHING = Counts()


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of one model and lane; None is what nobody knows."""

    spec: ModelSpec
    lane: str
    queue: str
    at_broker: Counts
    held: Counts  # by workers, running work included
    oldest_s: float | None
    predicted_wait_s: float | None  # of a request that comes now
    state: str
    workers: int  # that have the model loaded

    @property
    def total(self) -> Counts:
        return self.at_broker + self.held

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.spec.model,
            "lane": self.lane,
            "pool": self.spec.pool,
            "queue": self.queue,
            "state": self.state,
            "workers": self.workers,
            **_counts(self.total),
            "at_broker": _counts(self.at_broker),
            "held": _counts(self.held),
            "oldest_s": _rounded(self.oldest_s),
            "predicted_wait_s": _rounded(self.predicted_wait_s),
        }


def backlogs(catalog: Snapshot, fleet: Fleet, queues: QueueReader, now: float, unix: float) -> list[Backlog]:
    """For every model and lane, in the catalog's order; `now` is monotonic."""
    oldest = _oldest_held(fleet)
    return [
        _backlog(model.spec, lane, fleet, queues, oldest, now, unix)
        for model in catalog.models.values()
        for lane in names.LANES
    ]


def _backlog(
    spec: ModelSpec,
    lane: str,
    fleet: Fleet,
    reader: QueueReader,
    oldest_held: Mapping[tuple[str, str], float],
    now: float,
    unix: float,
) -> Backlog:
    queue, look = names.queue(spec.pool, spec.model, lane), reader.current
    forecast = reader.forecast(spec.model, lane, now)
    state = fleet.state(spec)
    return Backlog(
        spec,
        lane,
        queue,
        at_broker=look.waiting[queue].counts if queue in look.waiting else NOTHING,
        held=look.held.get(queue, NOTHING),
        oldest_s=_age(look, queue, oldest_held.get((spec.digest, lane)), unix),
        predicted_wait_s=forecast.wait_s(reader.ahead(spec, lane, forecast)) if forecast else None,
        state=state.state,
        workers=len(state.workers),
    )


def _age(look: Queues, queue: str, held: float | None, unix: float) -> float | None:
    waiting = look.waiting.get(queue)
    if waiting is None and held is None:
        return 0.0
    known = [at for at in (waiting.oldest if waiting else None, held) if at is not None]
    return max(unix - min(known), 0.0) if known else None


def _oldest_held(fleet: Fleet) -> dict[tuple[str, str], float]:
    """When the oldest request that waits in a worker was published, by digest and lane."""
    found: dict[tuple[str, str], float] = {}
    for digest, lane, at in _held(fleet):
        found[digest, lane] = min(at, found.get((digest, lane), at))
    return found


def _held(fleet: Fleet) -> Iterator[tuple[str, str, float]]:
    for beat in fleet.beats:
        for state in beat.get("models", ()):
            yield from ((str(state.get("digest")), lane, at) for lane, at in state.get("oldest", {}).items())


def _counts(counts: Counts) -> dict[str, int]:
    found = asdict(counts)
    return {"requests": found.pop("messages"), **found}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
