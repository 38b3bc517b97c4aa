"""A task's hash: what is known of work that its caller asks for later. Gateways write it, workers for a late call."""

from typing import Any

from protocol import names
from protocol.messages import Request

# KEYS: the result's key. ARGV: the result, seconds it is kept. The first writer wins, and whoever waits hears of it.
STORE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then
  redis.call('PUBLISH', KEYS[1], ARGV[1])
  return 1
end
return 0
"""

# The same, if a second key is there: the hash of a task, so that somebody knows the id. None is made for other calls.
STORE_IF_KNOWN = f"if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end\n{STORE}"

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
