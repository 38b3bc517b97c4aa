"""The routes of tasks: hand a call over, look at it later, cancel it."""

import math
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse

from inference import dispatch
from inference.bodies import read_map
from inference.calls import Accepted, Call
from inference.dialects import native
from inference.hot import HotRequest, hot
from inference.responses import json_response, respond
from inference.schema import CANCEL_TASK, CREATE_TASK, GET_TASK
from inference.tasks import Task
from protocol import names
from protocol import native as native_wire
from protocol.errors import InvalidInput
from protocol.options import is_unicode, shown

MAX_WAIT_S = 60.0
MAX_TIMEOUT_S = 86400.0


@hot(post=CREATE_TASK)
async def tasks(request: HotRequest) -> HttpResponse:
    """Accept a call that nobody waits for."""
    body = read_map(request.content, request.header("CONTENT_TYPE"))
    call = _parse(request, body)
    return accepted_response(await dispatch.submit(request.gateway, call))


@hot(get=GET_TASK, delete=CANCEL_TASK)
async def task(request: HotRequest, task_id: str) -> HttpResponse:
    """State, result or error of a task; DELETE cancels it."""
    store, key = request.gateway.tasks, request.key.prefix if request.key else None
    if request.method == "DELETE":
        return _task_response(await store.cancel(task_id, key))
    seconds = _parse_seconds(request.GET["wait"], "wait", MAX_WAIT_S) if "wait" in request.GET else 0.0
    return _task_response(await (store.wait(task_id, key, seconds) if seconds else store.get(task_id, key)))


def accepted_response(accepted: Accepted) -> HttpResponse:
    request = accepted.request
    body = {
        "id": request.id,
        "object": "task",
        "state": "queued",
        "primitive": request.primitive,
        "model": request.model,
        "lane": request.lane,
        "created": request.published,
        "deadline": request.deadline,
    }
    headers = {
        "Location": f"/v1/tasks/{request.id}",
        "Preference-Applied": "respond-async",
        "X-SIE-Request-ID": request.id,
    }
    return json_response(body, 202, headers)


def _task_response(found: Task) -> HttpResponse:
    return respond(native_wire.dumps(found.to_json()))


def _parse(request: HotRequest, body: Mapping[str, Any]) -> Call:
    primitive, model, lane, timeout = (body.get(name) for name in ("primitive", "model", "lane", "timeout_s"))
    if not isinstance(primitive, str) or primitive not in native.PARSERS:
        known = ", ".join(native.PARSERS)
        raise InvalidInput(f"primitive must be one of {known}, not {shown(primitive)}", param="primitive")
    if not isinstance(model, str) or not is_unicode(model):
        raise InvalidInput(f"model must be the name of a model, not {shown(model)}", param="model")
    if lane is not None and lane not in names.LANES:
        raise InvalidInput(f"lane must be one of {', '.join(names.LANES)}, not {shown(lane)}", param="lane")
    limit = request.gateway.limits.task_ttl_s
    timeout_s = limit if timeout is None else _parse_seconds(timeout, "timeout_s", MAX_TIMEOUT_S)
    fields = native.PARSERS[primitive](body)
    return Call(
        id=request.id, primitive=primitive, model=model, lane=lane, timeout_s=timeout_s, key=request.key, **fields
    )


def _parse_seconds(value: Any, name: str, most: float) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds <= most:
        raise InvalidInput(f"{name} must be 0 to {most:g} seconds, not {shown(value)}", param=name)
    return seconds
