"""The fleet as the admin shows it: the workers' beats in Redis, read once and parsed into frozen data."""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
from django.conf import settings

from protocol import names

SILENT_AFTER = 3.0  # seconds without a beat; a beat comes every second and expires after five


@dataclass(frozen=True, slots=True)
class Resident:
    """A model on a worker's device, or on its way there."""

    model: str
    state: str
    bytes: int = 0
    progress: float | None = None  # share of the load done, 0 to 1
    stage: str = ""
    packed: bool | None = None  # None: not known before the load's own check
    last_used: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Queue:
    """What one worker holds of one model and lane."""

    model: str
    lane: str
    items: int
    cost: int


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    pool: str
    device: str
    pid: int
    started: float
    beat: float
    capacity: int
    used: int
    engines: tuple[str, ...] = ()
    residents: tuple[Resident, ...] = ()
    queues: tuple[Queue, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All workers that beat lately; `problem` says why they cannot be known."""

    now: float
    workers: tuple[Worker, ...] = ()
    problem: str = ""

    @property
    def used(self) -> int:
        return sum(worker.used for worker in self.workers)

    @property
    def capacity(self) -> int:
        return sum(worker.capacity for worker in self.workers)

    @property
    def counters(self) -> Counter[str]:
        """The workers' counters added up."""
        return sum((Counter(worker.counters) for worker in self.workers), Counter())

    @property
    def loaded(self) -> set[str]:
        """Models that at least one worker has loaded."""
        return {resident.model for resident in self._residents() if resident.state == "loaded"}

    def states(self) -> dict[str, tuple[Resident, ...]]:
        """What every worker has of each model."""
        found: dict[str, tuple[Resident, ...]] = {}
        for resident in self._residents():
            found[resident.model] = (*found.get(resident.model, ()), resident)
        return found

    def _residents(self) -> Iterable[Resident]:
        return (resident for worker in self.workers for resident in worker.residents)


def read(client: "redis.Redis", now: float) -> Fleet:
    """The fleet as of `now`, in two round trips. Redis being away is an answer here, not an exception."""
    try:
        beats: dict[bytes, float] = dict(client.zrange(names.WORKERS, 0, -1, withscores=True))  # type: ignore[arg-type]
        texts = client.mget([names.worker(worker_id.decode()) for worker_id in beats]) if beats else []
    except redis.RedisError as error:
        return Fleet(now, problem=f"Redis does not answer ({type(error).__name__}), so the fleet is not known.")
    found = zip(beats.values(), texts, strict=True)
    workers = [_worker(json.loads(text), beat) for beat, text in found if text is not None]
    return Fleet(now, tuple(sorted(workers, key=lambda worker: (worker.pool, worker.id))))


def _worker(beat: Mapping[str, Any], at: float) -> Worker:
    memory = beat.get("memory", {})
    return Worker(
        id=beat["id"],
        pool=beat.get("pool", ""),
        device=beat.get("device", ""),
        pid=beat.get("pid", 0),
        started=beat.get("started", at),
        beat=at,
        capacity=memory.get("capacity", 0),
        used=memory.get("used", 0),
        engines=tuple(f"{engine['bundle']}: {engine['state']}" for engine in beat.get("engines", ())),
        residents=tuple(_resident(model) for model in beat.get("models", ())),
        queues=tuple(_queue(beat.get("pool", ""), name, depth) for name, depth in beat.get("queues", {}).items()),
        counters=beat.get("counters", {}),
    )


def _resident(model: Mapping[str, Any]) -> Resident:
    return Resident(
        model=model["model"],
        state=model.get("state", ""),
        bytes=model.get("bytes") or 0,
        progress=model.get("progress"),
        stage=model.get("stage") or "",
        packed=model.get("packed"),
        last_used=model.get("last_used"),
        error=_error_text(model.get("error")),
    )


def _error_text(error: Any) -> str:
    return str(error.get("message", "")) if isinstance(error, dict) else str(error or "")


def _queue(pool: str, name: str, depth: Mapping[str, int]) -> Queue:
    model, _, lane = name.removeprefix(f"shoal.{pool}.").rpartition(".")
    return Queue(model.replace("__", "/"), lane, depth.get("items", 0), depth.get("cost", 0))


@functools.lru_cache(maxsize=4)
def connection(url: str) -> "redis.Redis":
    """One client per URL, with timeouts short enough for a page that is asked for every second."""
    return redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)


def current(now: float) -> Fleet:
    return read(connection(settings.SHOAL_REDIS_URL), now)
