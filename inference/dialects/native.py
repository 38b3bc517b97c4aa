"""The native dialect: the published SIE SDK's wire protocol, in MessagePack with NumPy arrays or in JSON."""

from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from django.http import HttpResponse

from inference.calls import Outcome
from inference.responses import MSGPACK, WIRE_VERSION, error_headers, json_response, respond
from protocol import native
from protocol.errors import InvalidInput, ShoalError
from protocol.items import parse_items
from protocol.options import PROFILE, shown, shown_key

# Where both `params` and `params.options` name one of these, `params` counts; of all others the inner one does.
_OUTER_WINS = ("output_dtype", "instruction")
_TIMES = {
    "queue": "X-Queue-Time",
    "prepare": "X-Tokenization-Time",
    "forward": "X-Inference-Time",
    "finish": "X-Postprocessing-Time",
}


def parse_encode(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Call that the body decides. Raises InvalidInput."""
    items = parse_items(body.get("items"))
    outer = _map(body.get("params"), "params")
    inner = _map(outer.get("options"), "params.options")
    options, paths = {}, {PROFILE: f"params.options.{PROFILE}"}
    for name in {**outer, **inner}:
        if name == "options":
            continue
        is_outer = outer.get(name) is not None and (name in _OUTER_WINS or inner.get(name) is None)
        options[name] = outer[name] if is_outer else inner.get(name)
        paths[name] = f"{'params' if is_outer else 'params.options'}.{shown_key(name)}"
    return {"items": items, "options": options, "paths": paths}


def _map(value: Any, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} must be a map, not {shown(value)}", param=path)
    return value


def render(outcome: Outcome, as_msgpack: bool) -> HttpResponse:
    call = outcome.call
    ids = [item.get("id") for item in call.items]
    body = native.json_body(call.primitive, call.model, ids, outcome.results, outcome.timing)
    headers = _headers(outcome)
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


def _headers(outcome: Outcome) -> dict[str, str]:
    headers = {name: f"{outcome.timing[stage]:.2f}" for stage, name in _TIMES.items() if outcome.timing.get(stage)}
    headers["X-Total-Time"] = f"{outcome.total_ms:.2f}"
    headers["X-SIE-Request-ID"] = outcome.call.id
    headers["X-SIE-Server-Version"] = WIRE_VERSION
    headers["X-SIE-Worker"] = outcome.worker
    headers["X-SIE-Units-Input-Tokens"] = str(outcome.tokens)
    return headers
