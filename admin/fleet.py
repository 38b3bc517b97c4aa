"""The fleet as the admin shows it: the workers' beats and the queues in Redis, read once into frozen data."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings

from admin.connections import client, state
from protocol import beats, clock, links, names

STATES = (
    "loaded",
    "loading",
    "unloading",
    "fetching",
    "waiting",
    "parked",
    "failed",
    "absent",
)  # what matters most first


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that a worker serves: on its device, on its way there, or failed."""

    model: str
    state: str
    bytes: int = 0
    progress: float = 0.0  # share of the fetch or load done, 0 to 1
    stage: str = ""
    packed: bool = False
    pinned: bool = False
    idle_s: float = 0.0
    items: int = 0  # held by the worker and not yet run
    cost: int = 0
    error: str = ""
    retry_in_s: float = 0.0  # a failed load is tried again by the first call after this
    ceiling: int | None = None  # largest cost of a batch since the device ran out of memory


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits at the broker for any worker of the pool."""

    pool: str
    model: str
    lane: str
    messages: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for one model and lane: messages at the broker, and items that workers hold and have not finished."""

    pool: str
    model: str
    lane: str
    messages: int | None = None  # None: the broker cannot be asked from here
    items: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    pool: str
    device: str
    pid: int
    started: float | None  # by Redis's time
    draining: bool
    capacity: int
    used: int
    host_capacity: int = 0  # of the host's memory, for models that left the device
    host_used: int = 0
    engines: tuple[str, ...] = ()
    residents: tuple[Resident, ...] = ()
    held: tuple[Backlog, ...] = ()
    leaving_order: tuple[str, ...] = ()  # loaded models, the first to make room first
    thrashing: tuple[str, ...] = ()  # models that push each other off the device
    counters: tuple[tuple[str, int], ...] = ()
    clock_ahead_s: float = 0.0  # of Redis's, as far as it matters


@dataclass(frozen=True, slots=True)
class Fleet:
    """All workers that beat lately; `problem` says why they cannot be known."""

    now: float
    workers: tuple[Worker, ...] = ()
    queues: tuple[Queue, ...] | None = None  # None: the broker is not a Redis, so this page cannot count
    dead_letters: int = 0
    problem: str = ""

    @property
    def used(self) -> int:
        return sum(worker.used for worker in self.workers)

    @property
    def capacity(self) -> int:
        return sum(worker.capacity for worker in self.workers)

    @property
    def items(self) -> int:
        """Items run since the workers started."""
        return sum(count for worker in self.workers for name, count in worker.counters if name == "items")

    @property
    def loaded(self) -> set[str]:
        """Models that at least one worker has loaded."""
        return {model for model, state in self.states().items() if state == "loaded"}

    def states(self) -> dict[str, str]:
        """Each model's best state over all workers."""
        found: dict[str, str] = {}
        for resident in self._residents():
            found[resident.model] = min(resident.state, found.get(resident.model, resident.state), key=_rank)
        return found

    def held(self) -> Counter[str]:
        """Bytes of each model over all devices."""
        found: Counter[str] = Counter()
        for resident in self._residents():
            if resident.state in ("loaded", "loading", "unloading"):
                found[resident.model] += resident.bytes
        return found

    @property
    def backlog(self) -> list[Backlog]:
        """Every lane with work in it, at the broker and at the workers together."""
        unknown = None if self.queues is None else 0
        found: dict[tuple[str, str, str], Backlog] = {}
        for one in self._waiting():
            key = (one.pool, one.model, one.lane)
            so_far = found.get(key, Backlog(*key, messages=unknown))
            messages = so_far.messages if one.messages is None else (so_far.messages or 0) + one.messages
            found[key] = Backlog(*key, messages, so_far.items + one.items, so_far.cost + one.cost)
        return [found[key] for key in sorted(found)]

    def _waiting(self) -> Iterable[Backlog]:
        yield from (Backlog(one.pool, one.model, one.lane, one.messages) for one in self.queues or ())
        yield from (one for worker in self.workers for one in worker.held)

    def _residents(self) -> Iterable[Resident]:
        return (resident for worker in self.workers for resident in worker.residents)


def _rank(state: str) -> int:
    return STATES.index(state) if state in STATES else len(STATES)


def read(memory: "redis.Redis", broker: "redis.Redis | None") -> Fleet:
    """The fleet as of now, by Redis's time. Redis being away is an answer here, not an exception."""
    pipeline = memory.pipeline(transaction=False)
    pipeline.time()
    pipeline.zrange(names.WORKERS, 0, -1)
    pipeline.zrange(names.DEMAND, 0, -1)
    pipeline.zcard(names.DEAD)
    asked = time.time()
    try:
        server_time, ids, demanded, dead = pipeline.execute()
        clock.learn(server_time, asked, time.time())
        raw = memory.mget([names.worker(worker_id.decode(errors="replace")) for worker_id in ids]) if ids else []
        depths = _depths(broker, demanded) if broker is not None else None
    except redis.RedisError as error:
        return Fleet(clock.now(), problem=f"Redis does not answer ({type(error).__name__}), so the fleet is not known.")
    found = [beats.read(one) for one in raw if one is not None]
    workers = [_worker(beat) for beat in found if beat is not None]
    return Fleet(clock.now(), tuple(sorted(workers, key=lambda worker: (worker.pool, worker.id))), depths, dead)


def _depths(broker: "redis.Redis", queue_names: Iterable[bytes]) -> tuple[Queue, ...]:
    names_sorted = sorted(name.decode(errors="replace") for name in queue_names)
    pipeline = broker.pipeline(transaction=False)
    for name in names_sorted:
        pipeline.llen(name)
    found = zip(names_sorted, pipeline.execute(), strict=True)
    return tuple(queue(name, depth) for name, depth in found if depth)


def queue(name: str, messages: int) -> Queue:
    return Queue(*_parts(name), messages)


def _held(name: str, depth: Mapping[str, int]) -> Backlog:
    return Backlog(*_parts(name), items=depth.get("items", 0), cost=depth.get("cost", 0))


def _parts(name: str) -> tuple[str, str, str]:
    """Pool, model and lane: the inverse of names.queue. A pool has no dot in its name, a lane neither, a model may."""
    if name.count(".") < 3:
        return "", name, ""  # the intake queue of plain Celery clients
    _, pool, rest = name.split(".", 2)
    model, _, lane = rest.rpartition(".")
    return pool, model.replace("__", "/"), lane


def _worker(beat: Mapping[str, Any]) -> Worker:
    memory, ahead_s, started = beat.get("memory", {}), beat.get("clock_ahead_s", 0.0), beat.get("started")
    residents = [_resident(model) for model in beat.get("models", ()) if model.get("state") != "absent"]
    return Worker(
        id=beat["id"],
        pool=beat.get("pool", ""),
        device=beat.get("device", ""),
        pid=beat.get("pid", 0),
        started=None if started is None else started - ahead_s,
        clock_ahead_s=ahead_s,
        draining=beat.get("draining", False),
        capacity=memory.get("capacity", 0),
        used=memory.get("used", 0),
        host_capacity=memory.get("host_capacity", 0),
        host_used=memory.get("host_used", 0),
        engines=tuple(f"{engine.get('bundle')} ({engine.get('state')})" for engine in beat.get("engines", ())),
        residents=tuple(sorted(residents, key=lambda resident: (_rank(resident.state), resident.model))),
        held=tuple(_held(name, depth) for name, depth in beat.get("queues", {}).items()),
        leaving_order=tuple(beat.get("leaving_order", ())),
        thrashing=tuple(beat.get("thrashing", ())),
        counters=tuple(beat.get("counters", {}).items()),
    )


def _resident(model: Mapping[str, Any]) -> Resident:
    error = model.get("error") or {}
    return Resident(
        model=model["model"],
        state=model.get("state", ""),
        bytes=model.get("bytes", 0),
        progress=model.get("progress", 0.0),
        stage=model.get("stage", ""),
        packed=model.get("packed", False),
        pinned=model.get("pinned", False),
        idle_s=model.get("idle_s", 0.0),
        items=model.get("waiting", 0),
        cost=model.get("waiting_cost", 0),
        error=error.get("message", ""),
        retry_in_s=model.get("retry_in_s", 0.0),
        ceiling=model.get("ceiling"),
    )


def current() -> Fleet:
    broker = client(settings.SHOAL_BROKER_URL) if links.is_redis(settings.SHOAL_BROKER_URL) else None
    return read(state(), broker)
