"""The dialect of text-embeddings-inference: POST /rerank and /embed, for one model where a body names none.

Fields and answers are TEI's; statuses and codes are Shoal's own. What TEI ignores is refused where it would matter.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from django.http import HttpResponse

from catalog.snapshot import Snapshot
from inference.calls import Outcome
from inference.dialects import openai
from inference.dialects.cohere import best_first, parse_query, rename
from inference.dialects.native import MAX_CANDIDATES
from inference.responses import JSON, error_headers, json_response, respond
from protocol import native
from protocol.errors import InvalidInput, QueueFull, ShoalError, TooManyRequests
from protocol.items import parse_text
from protocol.options import shown, shown_key

MODEL_HEADER = "X-Shoal-Model"
_SIDES = {"query": True, "document": False, "passage": False}
_RERANK = ("model", "query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction")
_EMBED = ("model", "inputs", "truncate", "truncation_direction", "normalize", "prompt_name", "dimensions")
_KINDS = {
    InvalidInput: "Validation",
    TooManyRequests: "Overloaded",
    QueueFull: "Overloaded",
}


def parse_rerank(body: Mapping[str, Any], header: str, catalog: Snapshot) -> dict[str, Any]:
    """The fields of a Call that body and header decide. Raises InvalidInput."""
    _check(body, _RERANK)
    texts = body.get("texts")
    if not isinstance(texts, list) or not 1 <= len(texts) <= MAX_CANDIDATES:
        given = len(texts) if isinstance(texts, list) else shown(texts)
        raise InvalidInput(f"texts must be a list of 1 to {MAX_CANDIDATES} texts, not {given}", param="texts")
    _flag(body, "return_text", False)
    return {
        "model": _model(body, header, catalog, "score"),
        "query": {"text": parse_query(body.get("query"))},
        "items": [{"text": parse_text(text, f"texts[{index}]")} for index, text in enumerate(texts)],
        "options": {"normalize": not _flag(body, "raw_scores", False), "overflow": _overflow(body)},
        "paths": {"normalize": "raw_scores", "overflow": "truncate"},
    }


def parse_embed(body: Mapping[str, Any], header: str, catalog: Snapshot) -> dict[str, Any]:
    """The same of an encode Call."""
    _check(body, _EMBED)
    side = body.get("prompt_name")
    if side is not None and (not isinstance(side, str) or side not in _SIDES):
        raise InvalidInput(f"prompt_name must be one of {', '.join(_SIDES)}, not {shown(side)}", param="prompt_name")
    options = {
        "output_types": ["dense"],
        "output_dtype": "float32",
        "normalize": _flag(body, "normalize", True),
        "overflow": _overflow(body),
        "dimensions": body.get("dimensions"),
        "is_query": None if side is None else _SIDES[side],
    }
    paths = {"dimensions": "dimensions", "output_types": "model", "is_query": "prompt_name", "overflow": "truncate"}
    model = _model(body, header, catalog, "encode")
    return {
        "model": model,
        "items": openai.parse_input(body.get("inputs"), "inputs"),
        "options": options,
        "paths": paths,
    }


def render_rerank(outcome: Outcome, with_text: bool) -> HttpResponse:
    ranks = [
        {"index": index, "score": outcome.results[index]["score"]}
        | ({"text": outcome.call.items[index]["text"]} if with_text else {})
        for index in best_first(outcome)
    ]
    return respond(native.dumps(ranks), JSON, headers=_headers(outcome))


def render_embed(outcome: Outcome) -> HttpResponse:
    rows = [np.asarray(result["dense"]["values"], np.float32) for result in outcome.results]
    return respond(native.dumps(rows), JSON, headers=_headers(outcome))


def render_rerank_error(error: ShoalError, request_id: str) -> HttpResponse:
    return _render_error(error, request_id, "texts")


def render_embed_error(error: ShoalError, request_id: str) -> HttpResponse:
    return _render_error(error, request_id, "inputs")


def _render_error(error: ShoalError, request_id: str, items: str) -> HttpResponse:
    kind = next((kind for known, kind in _KINDS.items() if isinstance(error, known)), "Backend")
    body = {**error.extra, "error": error.message, "error_type": kind, "code": error.code}
    if error.param is not None:
        body["param"] = rename(error.param, items)
    headers = {**error_headers(error, request_id), "X-Request-ID": request_id}
    return json_response(body, error.status, headers)


def _model(body: Mapping[str, Any], header: str, catalog: Snapshot, primitive: str) -> str:
    """The body's, the header's, or the only one there is."""
    if body.get("model") is not None:
        return openai.parse_model(body["model"])
    if header:
        return header
    able = [name for name, model in catalog.models.items() if primitive in model.spec.primitives]
    if len(able) == 1:
        return able[0]
    raise InvalidInput(
        f"name the model as 'model' or in the header {MODEL_HEADER}: {len(able)} models of the catalog {primitive}",
        param="model",
    )


def _check(body: Mapping[str, Any], fields: tuple[str, ...]) -> None:
    for name, value in body.items():
        if name not in fields and value is not None:
            where = shown_key(name)
            raise InvalidInput(f"{where} is no field of this route; there are: {', '.join(fields)}", param=where)
    side = body.get("truncation_direction")
    if side is not None and (not isinstance(side, str) or side.lower() != "right"):
        where = "truncation_direction"
        raise InvalidInput(f"{where} can be Right, not {shown(side)}: a model's tokenizer decides", param=where)


def _flag(body: Mapping[str, Any], name: str, usual: bool) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{name} must be true or false, not {shown(value)}", param=name)
    return usual if value is None else value


def _overflow(body: Mapping[str, Any]) -> str:
    """TEI refuses what is too long unless it is asked to cut."""
    return "truncate" if _flag(body, "truncate", False) else "error"


def _headers(outcome: Outcome) -> dict[str, str]:
    return {
        "X-Request-ID": outcome.call.id,
        "X-Compute-Tokens": str(outcome.tokens),
        "X-Total-Time": f"{outcome.total_ms:.0f}",
    }
