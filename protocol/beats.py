"""A worker's beat: what it says of itself every second, read without trust.

Workers of several versions may share one Redis, and a beat that cannot be read must not hide the others.
"""

from collections.abc import Mapping
from typing import Any

import orjson

_NUMBER = (int, float)
_NOTHING = type(None)
_ANY_KEY = ""  # stands for whatever keys a map has

# Every field may be missing but those in _NEEDED; others may be there. A list holds values of one shape.
_ERROR = {"code": str, "message": str}
_MODEL = {
    "model": str,
    "digest": str,
    "state": str,
    "stage": str,
    "bytes": _NUMBER,
    "progress": _NUMBER,
    "packed": bool,
    "pinned": bool,
    "idle_s": _NUMBER,
    "load_s": _NUMBER,
    "wake_s": _NUMBER,
    "in_host": bool,
    "rate": (*_NUMBER, _NOTHING),
    "oldest": {_ANY_KEY: _NUMBER},
    "waiting": _NUMBER,
    "waiting_cost": _NUMBER,
    "error": (_ERROR, _NOTHING),
}
_BEAT = {
    "id": str,
    "pool": str,
    "device": str,
    "pid": int,
    "started": (*_NUMBER, _NOTHING),
    "clock_ahead_s": _NUMBER,
    "draining": bool,
    "flights": _NUMBER,
    "waiting": _NUMBER,
    "batch_s": (*_NUMBER, _NOTHING),
    "memory": {_ANY_KEY: _NUMBER},
    "leaving_order": [str],
    "thrashing": [str],
    "engines": [{"bundle": str, "state": str}],
    "models": [_MODEL],
    "counters": {_ANY_KEY: _NUMBER},
    "queues": {_ANY_KEY: {_ANY_KEY: _NUMBER}},
}
_NEEDED: Mapping[int, tuple[str, ...]] = {id(_BEAT): ("id",), id(_MODEL): ("model", "digest", "state")}


def read(raw: bytes | str) -> dict[str, Any] | None:
    """The beat, or None for what is none."""
    try:
        beat = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return beat if _fits(beat, _BEAT) else None


def write(beat: Mapping[str, Any]) -> bytes:
    """Numbers that JSON does not have become null."""
    return orjson.dumps(beat, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _fits(value: Any, shape: Any) -> bool:
    match shape:
        case dict():
            if not isinstance(value, dict) or any(key not in value for key in _NEEDED.get(id(shape), ())):
                return False
            inner = shape.get(_ANY_KEY)
            return all(_fits(one, shape.get(key, inner)) for key, one in value.items() if key in shape or inner)
        case list():
            return isinstance(value, list) and all(_fits(one, shape[0]) for one in value)
        case tuple():
            return any(_fits(value, one) for one in shape)
    return isinstance(value, shape)
