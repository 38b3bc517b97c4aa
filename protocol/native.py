"""The native JSON body of a result: what tasks store, what `AsyncResult.get` returns, what a waiting caller reads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

_NOT_OUTPUTS = ("tokens", "truncated")
_STAGES = {"queue": "queue_ms", "prepare": "tokenization_ms", "forward": "inference_ms", "finish": "postprocessing_ms"}


def json_body(
    primitive: str,
    model: str,
    ids: Sequence[str | None],
    results: Sequence[Mapping[str, Any]],
    timing: Mapping[str, float],
) -> dict[str, Any]:
    """`ids` are the items' own, by position; `results` and `timing` are a Reply's. Arrays stay arrays: see `dumps`."""
    return _BODIES[primitive](model, ids, results, timing)


def json_timing(timing: Mapping[str, float]) -> dict[str, float]:
    """A Reply's milliseconds under the names of the native wire, with their total."""
    stages = {name: round(timing[stage], 2) for stage, name in _STAGES.items() if stage in timing}
    return {"total_ms": round(sum(timing.values()), 2), **stages}


def dumps(value: Any) -> bytes:
    """JSON in which NumPy arrays are lists."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def _encode(
    model: str, ids: Sequence[str | None], results: Sequence[Mapping[str, Any]], timing: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "model": model,
        "items": [_item(item_id, result) for item_id, result in zip(ids, results, strict=True)],
        "usage": {"input_tokens": sum(result.get("tokens", 0) for result in results)},
        "timing": json_timing(timing),
    }


def _item(item_id: str | None, result: Mapping[str, Any]) -> dict[str, Any]:
    named = {} if item_id is None else {"id": item_id}
    return {**named, **{name: value for name, value in result.items() if name not in _NOT_OUTPUTS}}


def _plain(value: Any) -> Any:
    """What orjson does not read by itself, such as a view that is not contiguous."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


_BODIES: Mapping[str, Callable[..., dict[str, Any]]] = {"encode": _encode}
