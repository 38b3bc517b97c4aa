"""OpenAI's dialect of `encode`: POST /v1/embeddings. Unknown fields are ignored, unknown values are not."""

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from django.http import HttpResponse

from inference.calls import Outcome
from inference.responses import JSON, error_headers, json_response, respond
from protocol import native
from protocol.errors import InvalidInput, RouteNotFound, ShoalError, TooManyRequests, Unauthorized
from protocol.items import MAX_ITEMS, parse_text, parse_token_ids
from protocol.options import is_unicode, shown

_ITEM = re.compile(r"^items(\[\d+\])(\.text|\.token_ids)?$")
ENCODINGS = ("float", "base64")

# Words that OpenAI's own API uses where ours would differ by more than case
_CODES = {Unauthorized.code: "invalid_api_key", TooManyRequests.code: "rate_limit_exceeded"}


def parse_embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Call that the body decides. Raises InvalidInput."""
    parse_encoding(body)
    return {
        "model": parse_model(body.get("model")),
        "items": parse_input(body.get("input")),
        "options": {"dimensions": body.get("dimensions"), "output_dtype": "float32", "output_types": ["dense"]},
        "paths": {"dimensions": "dimensions", "output_types": "model"},
    }


def parse_encoding(body: Mapping[str, Any]) -> str:
    value = body.get("encoding_format")
    if value is None:
        return "float"
    if value not in ENCODINGS:
        raise InvalidInput(f"encoding_format must be float or base64, not {shown(value)}", param="encoding_format")
    return str(value)


def parse_model(value: Any) -> str:
    if not isinstance(value, str) or not is_unicode(value):
        raise InvalidInput(f"model must be the name of a model, not {shown(value)}", param="model")
    return value


def parse_input(value: Any, where: str = "input") -> list[dict[str, Any]]:
    """A string, strings, token ids, or lists of token ids."""
    if isinstance(value, str):
        return [{"text": parse_text(value, where)}]
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"{where} must be text or a list that is not empty, not {shown(value)}", param=where)
    if all(type(token) is int for token in value):
        return [{"token_ids": parse_token_ids(value, where)}]
    if len(value) > MAX_ITEMS:
        raise InvalidInput(f"{where} may hold {MAX_ITEMS} texts, not {len(value)}", param=where)
    return [_parse_one(one, f"{where}[{index}]") for index, one in enumerate(value)]


def _parse_one(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, list):
        return {"token_ids": parse_token_ids(value, where)}
    return {"text": parse_text(value, where)}


def render(outcome: Outcome, encoding: str) -> HttpResponse:
    write = _base64 if encoding == "base64" else _floats
    body = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": write(result["dense"]["values"])}
            for index, result in enumerate(outcome.results)
        ],
        "model": outcome.call.model,
        "usage": {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens},
    }
    return respond(native.dumps(body), JSON, headers={"X-Request-ID": outcome.call.id})


def _floats(vector: "np.ndarray[Any, Any]") -> Any:
    return vector.astype(np.float32, copy=False)


def _base64(vector: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode("ascii")


def render_error(error: ShoalError, request_id: str) -> HttpResponse:
    body, headers = error_body(error, request_id, lambda param: _ITEM.sub(r"input\1", param))
    return json_response(body, error.status, headers)


def error_body(
    error: ShoalError, request_id: str, rename: Callable[[str], str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """An error in OpenAI's shape, and its headers; `rename` puts a worker's words for a place into the dialect's."""
    body = {
        "message": error.message,
        "type": "invalid_request_error" if error.status < 500 else "server_error",
        "param": None if isinstance(error, RouteNotFound) or not error.param else rename(error.param),
        "code": _CODES.get(error.code, error.code.lower()),
    }
    headers = {**error_headers(error, request_id), "X-Request-ID": request_id}
    return {"error": {**error.extra, **body}}, headers
