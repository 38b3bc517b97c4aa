"""A stored result, in the words of Celery's Redis backend so that `AsyncResult(id).get()` reads it."""

from datetime import UTC, datetime
from typing import Any

from protocol import native
from protocol.messages import Request
from protocol.replies import Reply

# KEYS: the task's hash. ARGV: unix time. A hash that expired, or that nobody made, stays away.
MARK_RUNNING = """
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HSET', KEYS[1], 'state', 'running', 'started', ARGV[1])
end
"""


def stored_form(request: Request, reply: Reply, asked: native.Asked | None, now: datetime | None = None) -> bytes:
    """What `celery-task-meta-<id>` holds: the native JSON body, or Celery's failure with our error beside it."""
    meta: dict[str, Any] = {
        "task_id": request.id,
        "date_done": (now or datetime.now(UTC)).isoformat(),
        "traceback": None,
        "children": [],
    }
    if reply.error is None:
        assert reply.results is not None
        asked = asked or native.Asked(request.primitive, request.model, [None] * len(reply.results))
        body = native.json_body(asked, reply.results, reply.timing)
        return native.dumps({**meta, "status": "SUCCESS", "result": body})
    failure = {"exc_type": reply.error["code"], "exc_message": [reply.error["message"]], "exc_module": None}
    return native.dumps({**meta, "status": "FAILURE", "result": failure, "shoal_error": reply.error})
