"""Tasks: calls accepted with 202, and calls that were on the device when their deadline passed.

A hash says what was asked; the result lives where Celery's backend keeps it. The first writer
of a result wins, whether a worker that finished or a caller who cancelled.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from inference.calls import Accepted
from inference.cancels import send_cancels
from protocol import clock, names, tasks
from protocol.errors import Cancelled, Expired, InferenceError, QueueUnavailable, TaskFinished, TaskNotFound

MAX_WAITS = 256  # each holds a connection to Redis
FINISHED = frozenset({"succeeded", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True)
class Task:
    """A task as its owner may see it; times are unix seconds."""

    id: str
    state: str
    facts: Mapping[str, str]
    result: Any = None
    error: Mapping[str, Any] | None = None

    @property
    def pool(self) -> str:
        return self.facts.get("pool", "default")

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"id": self.id, "object": "task", "state": self.state}
        body |= {name: self.facts[name] for name in ("primitive", "model", "lane") if name in self.facts}
        times = {name: _time(self.facts, name) for name in ("created", "deadline", "started")}
        body |= {name: at for name, at in times.items() if at is not None}
        if self.result is not None:
            body["result"] = self.result
        if self.error is not None:
            body["error"] = self.error
        return body


class TaskStore:
    """Every method raises QueueUnavailable while Redis is away."""

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s
        self._waits = asyncio.Semaphore(MAX_WAITS)
        self._store_once = redis.register_script(tasks.STORE)

    async def add(self, accepted: Accepted) -> None:
        """Remember what was asked, before a worker can hear of it."""
        request = accepted.request
        async with _reachable(), self._redis.pipeline(transaction=True) as pipe:
            tasks.remember(pipe, request, accepted.spec.pool, request.deadline + self._ttl_s)
            await pipe.execute()

    async def discard(self, task_id: str) -> None:
        """Forget a task whose request never left; nobody was told its id."""
        with contextlib.suppress(QueueUnavailable):
            async with _reachable():
                await self._redis.delete(names.task(task_id))

    async def get(self, task_id: str, key: str | None) -> Task:
        """Raises TaskNotFound for an unknown id and for somebody else's, so that ids cannot be probed."""
        async with _reachable(), self._redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(names.task(task_id))
            pipe.get(names.task_result(task_id))
            raw, meta = await pipe.execute()
        facts = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in raw.items()}
        if not facts or facts.get("key", "") != (key or ""):
            raise TaskNotFound(f"there is no task {task_id[:80]!r}")
        return task_of(task_id, facts, None if meta is None else _read_meta(meta), clock.now())

    async def wait(self, task_id: str, key: str | None, seconds: float) -> Task:
        """The task as soon as it is finished, or as it is after `seconds`; at once when too many wait already."""
        if self._waits.locked():
            return await self.get(task_id, key)
        until = time.monotonic() + seconds
        async with self._waits, _reachable(), self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(names.task_result(task_id))
            task = await self.get(task_id, key)
            while task.state not in FINISHED and (left := until - time.monotonic()) > 0:
                if await channel.get_message(timeout=left) is not None:
                    break
            return task if task.state in FINISHED else await self.get(task_id, key)

    async def cancel(self, task_id: str, key: str | None) -> Task:
        """Raises TaskFinished when it has ended already; cancelling twice is no mistake."""
        task = await self.get(task_id, key)
        if task.state == "cancelled":
            return task
        if task.state in FINISHED:
            raise TaskFinished(f"task {task_id} has {task.state} already")
        async with _reachable():
            meta = _revoked(task_id)
            is_first = await self._store_once([names.task_result(task_id)], [orjson.dumps(meta), self._ttl_s])
            if is_first:
                await send_cancels(self._redis, [(task.pool, task_id)])
        task = await self.get(task_id, key)
        if task.state != "cancelled":
            raise TaskFinished(f"task {task_id} has {task.state} already")
        return task


@contextlib.asynccontextmanager
async def _reachable() -> AsyncIterator[None]:
    try:
        yield
    except (TimeoutError, RedisError, OSError, RuntimeError) as error:  # uvloop's word for a closed transport
        raise QueueUnavailable("Redis, which keeps tasks, cannot be reached") from error


def _read_meta(raw: bytes) -> dict[str, Any]:
    """What Celery's backend keeps. Other programs may write there too: what is no result of a task is a failure."""
    try:
        meta = dict(orjson.loads(raw))
        is_result = meta["status"] != "SUCCESS" or "result" in meta
    except (orjson.JSONDecodeError, TypeError, ValueError, LookupError):
        is_result = False
    if is_result and isinstance(meta.get("shoal_error", {}), dict):
        return meta
    return {"status": "FAILURE", "shoal_error": InferenceError("the stored result cannot be read").to_wire()}


def task_of(task_id: str, facts: Mapping[str, str], meta: Mapping[str, Any] | None, now: float) -> Task:
    """The state that hash and result together mean."""
    if meta is None:
        deadline = _time(facts, "deadline")
        is_late = (deadline is None or now > deadline) and facts.get("state") != "running"
        return Task(task_id, "expired" if is_late else facts.get("state", "queued"), facts)
    if meta["status"] == "SUCCESS":
        return Task(task_id, "succeeded", facts, result=meta["result"])
    if meta["status"] == "REVOKED":
        return Task(task_id, "cancelled", facts)
    error = meta.get("shoal_error") or InferenceError("the task failed").to_wire()
    state = {Expired.code: "expired", Cancelled.code: "cancelled"}.get(str(error.get("code")), "failed")
    return Task(task_id, state, facts, error=error)


def _time(facts: Mapping[str, str], name: str) -> float | None:
    """None where there is none, or what is there is none of ours."""
    try:
        at = float(facts[name])
    except (KeyError, ValueError):
        return None
    return at if math.isfinite(at) else None


def _revoked(task_id: str) -> dict[str, Any]:
    """What Celery stores for a revoked task, so that `AsyncResult.get` raises TaskRevokedError."""
    return {
        "status": "REVOKED",
        "result": {"exc_type": "TaskRevokedError", "exc_message": ["revoked"], "exc_module": "celery.exceptions"},
        "traceback": None,
        "children": [],
        "date_done": datetime.now(UTC).isoformat(),
        "task_id": task_id,
    }
