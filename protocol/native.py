"""The native JSON body of a result: what tasks store, what `AsyncResult.get` returns, what a waiting caller reads."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

# How a result map counts what was read (see `replies.Reply`) → how bodies and headers name it
UNITS = {"tokens": "input_tokens", "images": "images", "pages": "pages", "audio_ms": "audio_ms", "pairs": "pairs"}
_IN_EVERY_USAGE = ("input_tokens",)
_STAGES = {"queue": "queue_ms", "prepare": "tokenization_ms", "forward": "inference_ms", "finish": "postprocessing_ms"}
_EXTRACTED = ("entities", "relations", "classifications", "objects")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body repeats of the request: the model as addressed, the items' own ids by position, the query's."""

    primitive: str
    model: str
    ids: Sequence[str | None]
    query_id: str | None = None


def json_body(asked: Asked, results: Sequence[Mapping[str, Any]], timing: Mapping[str, float]) -> dict[str, Any]:
    """`results` and `timing` are a Reply's. Arrays stay arrays: see `dumps`."""
    body = _BODIES[asked.primitive](asked, results)
    return {**body, "usage": usage(results), "timing": json_timing(timing)}


def usage(results: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What was read, summed over all items; other units than tokens only where there are any."""
    counts: Counter[str] = Counter(dict.fromkeys(_IN_EVERY_USAGE, 0))
    for result in results:
        for unit, name in UNITS.items():
            if unit in result:
                counts[name] += result[unit]
    return dict(counts)


def json_timing(timing: Mapping[str, float]) -> dict[str, float]:
    """A Reply's milliseconds under the names of the native wire, with their total."""
    stages = {name: round(timing[stage], 2) for stage, name in _STAGES.items() if stage in timing}
    return {"total_ms": round(sum(timing.values()), 2), **stages}


def dumps(value: Any) -> bytes:
    """JSON in which NumPy arrays are lists."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def _encode(asked: Asked, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    items = []
    for item_id, result in zip(asked.ids, results, strict=True):
        named = {} if item_id is None else {"id": item_id}
        items.append({**named, **_outputs(result)})
    return {"model": asked.model, "items": items}


def _score(asked: Asked, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Best first; of equal scores the one that was given first."""
    order = sorted(range(len(results)), key=lambda index: -results[index]["score"])
    scores = [
        {"item_id": _id(asked, index), "rank": rank, **_outputs(results[index])} for rank, index in enumerate(order)
    ]
    return {"model": asked.model, "query_id": asked.query_id, "scores": scores}


def _extract(asked: Asked, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every item has all lists; one that failed alone has them empty and says why."""
    empty: dict[str, Any] = {**{name: [] for name in _EXTRACTED}, "data": {}}
    items = [{"id": _id(asked, index), **empty, **_outputs(result)} for index, result in enumerate(results)]
    return {"model": asked.model, "items": items}


def _id(asked: Asked, index: int) -> str:
    given = asked.ids[index]
    return f"item-{index}" if given is None else given


def _outputs(result: Mapping[str, Any]) -> dict[str, Any]:
    """What callers read of a result map: not the counts, and `truncated` only where something was cut off."""
    return {name: value for name, value in result.items() if name not in UNITS and (name != "truncated" or value)}


def _plain(value: Any) -> Any:
    """What orjson does not read by itself, such as a view that is not contiguous."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


_BODIES: Mapping[str, Callable[..., dict[str, Any]]] = {"encode": _encode, "score": _score, "extract": _extract}
