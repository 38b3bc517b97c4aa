"""Requests given up on, kept for an operator: what is known of them, and their message where it can be sent again.

All of it lives in Redis under five keys that scripts change together, bounded by count, bytes and age: the oldest
letters leave first. What a caller sent is in the message alone, never in the facts.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from protocol import names

MOST = 1000
MOST_BYTES = 64 << 20  # of all letters together, payloads that were put aside included
LETTER_BYTES = 9 << 20  # a larger message is not kept; its facts are
KEPT_S = 7 * 86400

KEYS = (names.DEAD, names.DEAD_FACTS, names.DEAD_MESSAGES, names.DEAD_SIZES, names.DEAD_BYTES)

_FORGET = """
local function forget(id, with_payload)
  local size = tonumber(redis.call('HGET', KEYS[4], id) or '0')
  for _, hash in ipairs({KEYS[2], KEYS[3], KEYS[4]}) do redis.call('HDEL', hash, id) end
  redis.call('DECRBY', KEYS[5], size)
  if with_payload then redis.call('UNLINK', ARGV[1] .. id) end
  return redis.call('ZREM', KEYS[1], id)
end
"""

# ARGV: prefix of payloads' keys, id, unix time, facts, message ('' when it cannot be sent again), seconds a letter is
# kept, most letters, most bytes of all, most bytes of one. A second death under one id takes the first one's place.
KEEP = (
    _FORGET
    + """
local id, now, blob = ARGV[2], tonumber(ARGV[3]), ARGV[1] .. ARGV[2]
forget(id, false)
local size = #ARGV[4]
local whole = size + #ARGV[5] + redis.call('STRLEN', blob)
if ARGV[5] ~= '' and whole <= tonumber(ARGV[9]) then
  redis.call('HSET', KEYS[3], id, ARGV[5])
  redis.call('EXPIRE', blob, ARGV[6])
  size = whole
end
redis.call('HSET', KEYS[2], id, ARGV[4])
redis.call('HSET', KEYS[4], id, size)
redis.call('ZADD', KEYS[1], now, id)
local bytes = redis.call('INCRBY', KEYS[5], size)
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[6]))) do forget(old, true) end
while redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[7])
    or tonumber(redis.call('GET', KEYS[5])) > tonumber(ARGV[8]) do
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not oldest then break end
  forget(oldest, true)
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[6]) end
"""
)

# ARGV: prefix of payloads' keys, then ids. Answers how many there were.
DROP = (
    _FORGET
    + """
local found = 0
for place = 2, #ARGV do found = found + forget(ARGV[place], true) end
return found
"""
)

# ARGV: prefix of payloads' keys, id, when it died. It was sent again, so its payload is another's now. One that has
# died anew meanwhile stays.
RETIRE = (
    _FORGET
    + """
local died = redis.call('ZSCORE', KEYS[1], ARGV[2])
if died and tonumber(died) == tonumber(ARGV[3]) then return forget(ARGV[2], false) end
return 0
"""
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What is known of one; times are unix seconds."""

    id: str
    primitive: str
    model: str
    lane: str
    key: str | None  # prefix of the caller's API key
    count: int
    cost: int
    published: float
    died: float
    attempts: int  # how often it was started
    code: str
    message: str
    worker: str
    queue: str
    is_replayable: bool = False  # its message is kept

    def to_json(self) -> str:
        facts = asdict(self)
        del facts["is_replayable"]
        return json.dumps(facts)


def keep_arguments(letter: DeadLetter, message: bytes, kept_s: int = KEPT_S) -> tuple[Any, ...]:
    """What KEEP is called with, keys first."""
    facts = letter.to_json()
    limits = (kept_s, MOST, MOST_BYTES, LETTER_BYTES)
    return (len(KEYS), *KEYS, names.blob(""), letter.id, letter.died, facts, message, *limits)


def drop_arguments(*ids: str) -> tuple[Any, ...]:
    """What DROP is called with, keys first."""
    return (len(KEYS), *KEYS, names.blob(""), *ids)


def retire_arguments(letter: DeadLetter) -> tuple[Any, ...]:
    """What RETIRE is called with, keys first."""
    return (len(KEYS), *KEYS, names.blob(""), letter.id, letter.died)


def read(facts: bytes, has_message: bool) -> DeadLetter:
    """Raises ValueError, TypeError or KeyError on what no worker wrote."""
    known: Mapping[str, Any] = json.loads(facts)
    return DeadLetter(**known, is_replayable=has_message)
