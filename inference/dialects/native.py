"""The native dialect: the published SIE SDK's wire protocol, in MessagePack with NumPy arrays or in JSON."""

from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np
from django.http import HttpResponse

from inference.calls import Outcome
from inference.responses import MSGPACK, WIRE_VERSION, error_headers, json_response, respond
from protocol import native
from protocol.errors import InvalidInput, ShoalError
from protocol.items import parse_item, parse_items
from protocol.options import PROFILE, shown, shown_key

# Where both `params` and `params.options` name one of these, `params` counts; of all others the inner one does.
_OUTER_WINS = ("output_dtype", "instruction")
_OF_SCORE = ("instruction", "options")  # keys beside a score's query and items; others are ignored, as SIE does
MAX_CANDIDATES = 1000
_TIMES = {
    "queue": "X-Queue-Time",
    "prepare": "X-Tokenization-Time",
    "forward": "X-Inference-Time",
    "finish": "X-Postprocessing-Time",
}


def parse_items_and_params(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an encode or extract Call that the body decides. Raises InvalidInput."""
    options, paths = _options(_map(body.get("params"), "params"), "params.")
    return {"items": parse_items(body.get("items")), "options": options, "paths": paths}


def parse_score(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a score Call, whose options stand at the top of the body."""
    if body.get("query") is None:
        raise InvalidInput("there is no query to compare the items with", param="query")
    items = parse_items(body.get("items"))
    if len(items) > MAX_CANDIDATES:
        raise InvalidInput(f"items must hold 1 to {MAX_CANDIDATES} candidates, not {len(items)}", param="items")
    outer = {name: value for name, value in body.items() if name in _OF_SCORE}
    options, paths = _options(outer, "")
    return {"items": items, "query": parse_item(body["query"], "query"), "options": options, "paths": paths}


# How the rest of a body is read, by primitive
PARSERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "encode": parse_items_and_params,
    "score": parse_score,
    "extract": parse_items_and_params,
}


def _options(outer: Mapping[str, Any], path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """All options as one map, and where each was written."""
    within = f"{path}options"
    inner = _map(outer.get("options"), within)
    options, paths = {}, {PROFILE: f"{within}.{PROFILE}"}
    for name in {**outer, **inner}:
        if name == "options":
            continue
        is_outer = outer.get(name) is not None and (name in _OUTER_WINS or inner.get(name) is None)
        options[name] = outer[name] if is_outer else inner.get(name)
        paths[name] = f"{path if is_outer else within + '.'}{shown_key(name)}"
    return options, paths


def _map(value: Any, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} must be a map, not {shown(value)}", param=path)
    return value


def render(outcome: Outcome, as_msgpack: bool) -> HttpResponse:
    body = native.json_body(outcome.asked, outcome.results, outcome.timing)
    headers = _headers(outcome, body["usage"])
    if as_msgpack:
        return respond(msgpack.packb(body, default=_array), MSGPACK, headers=headers)
    return respond(native.dumps(body), headers=headers)


def render_error(error: ShoalError, request_id: str) -> HttpResponse:
    return json_response({"error": error.to_wire()}, error.status, error_headers(error, request_id))


def _array(value: Any) -> dict[bytes, Any]:
    """A NumPy array as SIE writes it: a map whose keys are byte strings."""
    if isinstance(value, np.ndarray):
        return {
            b"nd": True,
            b"type": value.dtype.str,
            b"kind": b"",
            b"shape": value.shape,
            b"data": np.ascontiguousarray(value).data,
        }
    if isinstance(value, np.generic):
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise TypeError(f"{type(value).__name__} has no MessagePack form")


def _headers(outcome: Outcome, usage: Mapping[str, int]) -> dict[str, str]:
    headers = {name: f"{outcome.timing[stage]:.2f}" for stage, name in _TIMES.items() if outcome.timing.get(stage)}
    headers["X-Total-Time"] = f"{outcome.total_ms:.2f}"
    headers["X-SIE-Request-ID"] = outcome.call.id
    headers["X-SIE-Server-Version"] = WIRE_VERSION
    headers["X-SIE-Worker"] = outcome.worker
    return headers | {f"X-SIE-Units-{_header_word(unit)}": str(count) for unit, count in usage.items()}


def _header_word(unit: str) -> str:
    return unit.replace("_", "-").title()
