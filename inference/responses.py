"""HTTP responses of the hot routes: bytes with headers, nothing that needs a thread."""

from collections.abc import Mapping
from typing import Any

import orjson
from django.http import HttpResponse

from protocol.errors import ShoalError

JSON = "application/json"
MSGPACK = "application/msgpack"

# The release of the SIE wire protocol that the native dialect speaks; its SDK compares this with its own version.
WIRE_VERSION = "0.10.1"


def respond(
    content: bytes, content_type: str = JSON, status: int = 200, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    return HttpResponse(content, content_type=content_type, status=status, headers=dict(headers or {}))


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return respond(orjson.dumps(body), JSON, status, headers)


def error_headers(error: ShoalError, request_id: str) -> dict[str, str]:
    """What clients read before the body: whether and when to try again."""
    headers = {"X-SIE-Request-ID": request_id, "X-SIE-Error-Code": error.code, "X-SIE-Server-Version": WIRE_VERSION}
    if error.retry_after is not None:
        headers["Retry-After"] = f"{error.retry_after:g}"
    if "task_id" in error.extra:
        headers["Location"] = f"/v1/tasks/{error.extra['task_id']}"
        headers["X-Should-Retry"] = "false"  # OpenAI's clients would have the work done twice
    return headers
