"""A task's hash: what is known of work that its caller asks for later. Gateways write it, workers for a late call."""

from typing import Any

from protocol import names
from protocol.messages import Request

MOST_LISTED = 10_000  # for operators; the tasks themselves end by their own time


def facts_of(request: Request, pool: str) -> dict[Any, Any]:
    """What a task's hash says of it from the start."""
    return {
        "model": request.model,
        "primitive": request.primitive,
        "lane": request.lane,
        "pool": pool,
        "created": request.published,
        "deadline": request.deadline,
        "key": request.key or "",
    }


def remember(pipe: Any, request: Request, pool: str, kept_until: float, **more: Any) -> None:
    """Put the commands into a pipeline, of either of redis-py's kinds. `more` are facts that are known already."""
    pipe.hset(names.task(request.id), mapping=facts_of(request, pool) | more)
    pipe.expireat(names.task(request.id), int(kept_until))
    pipe.zadd(names.TASKS, {request.id: request.published})
    pipe.zremrangebyrank(names.TASKS, 0, -MOST_LISTED - 1)
