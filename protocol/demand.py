"""What whoever publishes a request says in Redis: before, that there is demand for its queue and how much; after, that
workers should wake. A worker that misses the wake-up finds the queue by its demand.

Each function puts commands into a pipeline, of either of redis-py's kinds, or asks a blocking client at once.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from protocol import clock, names

# KEYS: lists. Answers for each its length and, as text, when the message that is read next was published. The message
# is searched, not parsed: bodies are large, and base64, which has no quotes.
BACKLOGS = """
local found = {}
for i = 1, #KEYS do
  local head = redis.call('LINDEX', KEYS[i], -1) or ''
  found[2 * i - 1] = redis.call('LLEN', KEYS[i])
  found[2 * i] = string.match(head, '"published": ?(%d+%.?%d*)') or false
end
return found
"""

COUNTED = ("messages", "items", "cost")  # fields of the hash at `names.published`


def want(pipe: Any, queues: Iterable[str]) -> None:
    """Somebody publishes, or would publish, to these queues now."""
    pipe.zadd(names.DEMAND, dict.fromkeys(queues, clock.now()))


def count(pipe: Any, queue: str, *counts: int) -> None:
    """Add to what was ever published to a queue, in the order of COUNTED."""
    for field, value in zip(COUNTED, counts, strict=True):
        pipe.hincrby(names.published(queue), field, value)
    pipe.expire(names.published(queue), names.COUNTS_KEPT_S)


def wake(pipe: Any, pool: str, queues: Sequence[str]) -> None:
    """These queues of the pool have just been published to."""
    pipe.xadd(names.wake_stream(pool), {"q": json.dumps(list(queues))}, maxlen=names.WAKE_LENGTH)
