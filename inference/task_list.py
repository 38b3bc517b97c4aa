"""Recent tasks as operators meet them, from an index; no result is read whole, and nothing a caller sent at all."""

import re
from dataclasses import dataclass
from typing import Any

import redis
from asgiref.sync import async_to_sync
from redis.asyncio import Redis

from inference.tasks import Task, TaskStore, task_of
from protocol import clock, names

LOOKED_AT = 1000  # of the newest
_HEAD = 400  # bytes of a result: its status comes before its content
_STATUS = re.compile(rb'"status":"([A-Z]+)"')
_CODE = re.compile(rb'"exc_type":"([A-Za-z_]+)"')


@dataclass(frozen=True, slots=True)
class Listed:
    """A task in a list."""

    task: Task
    key: str
    code: str  # of its error; '' when it has none

    @property
    def facts(self) -> dict[str, str]:
        return dict(self.task.facts)

    @property
    def created(self) -> float:
        return float(self.task.facts.get("created", 0))


def newest(state: "redis.Redis", wanted: str = "", most: int = 200) -> list[Listed]:
    """The newest tasks that are still kept, all or those in one state. Raises RedisError."""
    client: Any = state
    ids = [found.decode(errors="replace") for found in client.zrevrange(names.TASKS, 0, LOOKED_AT - 1)]
    with client.pipeline(transaction=False) as pipe:
        for task_id in ids:
            pipe.hgetall(names.task(task_id))
            pipe.getrange(names.task_result(task_id), 0, _HEAD - 1)
        found = pipe.execute()
    now = clock.now()
    listed = [_listed(task_id, found[2 * n], found[2 * n + 1], now) for n, task_id in enumerate(ids)]
    return [one for one in listed if one is not None and wanted in ("", one.task.state)][:most]


def _listed(task_id: str, raw: dict[bytes, bytes], head: bytes, now: float) -> Listed | None:
    if b"deadline" not in raw:
        return None
    facts = {name.decode(): value.decode(errors="replace") for name, value in raw.items()}
    status, code = _STATUS.search(head), _CODE.search(head)
    meta: dict[str, Any] | None = None
    if head:
        said = status[1].decode() if status else "FAILURE"
        error = code[1].decode() if code and said == "FAILURE" else ""
        meta = {"status": said, "result": None, "shoal_error": {"code": error}}
    task = task_of(task_id, facts, meta, now)
    return Listed(task, facts.get("key", ""), str((task.error or {}).get("code", "")))


def cancel(redis_url: str, task_id: str, key: str, ttl_s: int) -> None:
    """As its caller would. Raises TaskNotFound, TaskFinished or QueueUnavailable."""
    async_to_sync(_cancel)(redis_url, task_id, key, ttl_s)


async def _cancel(redis_url: str, task_id: str, key: str, ttl_s: int) -> None:
    async with Redis.from_url(redis_url, socket_timeout=2, socket_connect_timeout=2) as client:
        await TaskStore(client, ttl_s).cancel(task_id, key)
