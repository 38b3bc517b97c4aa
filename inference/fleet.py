"""What the workers last said of themselves: read once a second, kept as one immutable view that any view may read."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from protocol import beats, clock, names
from protocol.spec import ModelSpec

log = logging.getLogger("shoal.fleet")

READ_EVERY_S = 1.0
STALE_S = 5.0  # older than this a view says nothing about the present
FORGET_S = 3600.0  # a worker silent for this long leaves the index

# A model's state on the fleet is the best of its workers' states, in this order; the words are the native wire's.
_STATES = {
    "loaded": "loaded",
    "loading": "loading",
    "waiting": "loading",
    "fetching": "loading",
    "unloading": "unloading",
    "parked": "available",
    "failed": "failed",
    "absent": "available",
}
_RANK = {state: rank for rank, state in enumerate(_STATES)}


@dataclass(frozen=True, slots=True)
class ModelState:
    """Where one model is, taking all workers together."""

    state: str = "available"
    progress: float = 0.0
    stage: str = ""
    error: Mapping[str, Any] | None = None
    workers: tuple[str, ...] = ()  # that have it loaded
    facts: Mapping[str, Any] = field(default_factory=dict)  # what its family says of it as loaded


@dataclass(frozen=True, slots=True)
class Fleet:
    """The beats of all live workers, at `read_at` on the monotonic clock."""

    beats: tuple[Mapping[str, Any], ...] = ()
    read_at: float = float("-inf")
    models: Mapping[str, ModelState] = field(default_factory=dict)  # by digest
    dead_letters: int = 0

    def is_fresh(self, now: float) -> bool:
        return now - self.read_at <= STALE_S

    def serves(self, pool: str) -> bool:
        return any(beat.get("pool") == pool and not beat.get("draining") for beat in self.beats)

    def state(self, spec: ModelSpec) -> ModelState:
        return self.models.get(spec.digest, ModelState())


def view(beats: Sequence[Mapping[str, Any]], now: float) -> Fleet:
    """Sum the beats up."""
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for beat in beats:
        for model in beat.get("models", ()):
            found.setdefault(model.get("digest", ""), []).append((str(beat.get("id")), model))
    return Fleet(tuple(beats), now, {digest: _sum_up(states) for digest, states in found.items()})


def _sum_up(states: Sequence[tuple[str, Mapping[str, Any]]]) -> ModelState:
    _, best = min(states, key=lambda state: (_RANK.get(state[1].get("state", ""), 99), -state[1].get("progress", 0.0)))
    return ModelState(
        state=_STATES.get(best.get("state", ""), "available"),
        progress=float(best.get("progress", 0.0)),
        stage=str(best.get("state", "")),
        error=best.get("error"),
        workers=tuple(worker for worker, model in states if model.get("state") == "loaded"),
        facts=best.get("facts") or {},
    )


class FleetReader:
    """`current` is replaced whole, never changed."""

    def __init__(self, redis: Redis) -> None:
        self.current = Fleet()
        self._redis = redis
        self._unreadable: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Read for ever."""
        while True:
            try:
                await self.read()
            except RedisError as error:
                log.debug("fleet not read", extra={"error": type(error).__name__})
            await asyncio.sleep(READ_EVERY_S)

    async def read(self) -> None:
        """A worker lives as long as its beat's key does: Redis' clock decides, not the workers'."""
        asked = time.time()
        clock.learn(await self._redis.time(), asked, time.time())
        known: list[Any] = await self._redis.zrange(names.WORKERS, 0, -1)
        ids = [worker.decode(errors="replace") for worker in known]
        values = await self._redis.mget([names.worker(worker) for worker in ids]) if ids else []
        found = {worker: beats.read(value) for worker, value in zip(ids, values, strict=True) if value is not None}
        if len(found) < len(known):
            await self._redis.zremrangebyscore(names.WORKERS, "-inf", clock.now() - FORGET_S)
        self._complain([worker for worker, beat in found.items() if beat is None])
        dead = int(await self._redis.zcard(names.DEAD))
        seen = view([beat for beat in found.values() if beat is not None], time.monotonic())
        self.current = replace(seen, dead_letters=dead)

    def _complain(self, unreadable: Sequence[str]) -> None:
        """Once for each worker, not every second."""
        for worker in unreadable:
            if worker not in self._unreadable:
                log.warning("a worker's beat cannot be read; is it of another version?", extra={"worker": worker[:100]})
        self._unreadable = frozenset(unreadable)
