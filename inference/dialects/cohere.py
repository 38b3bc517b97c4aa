"""Cohere's and Jina's dialect of `score`: POST /v1/rerank and /v2/rerank, with documents and relevance scores.

Scores are shares from 0 to 1 on every model, unless `options` ask for the model's own numbers. A field that would
change the answer and is not read here is refused, never ignored.
"""

import re
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse

from inference.calls import Outcome
from inference.dialects import openai
from inference.dialects.native import MAX_CANDIDATES
from inference.responses import JSON, json_response, respond
from protocol import native
from protocol.errors import InvalidInput, ShoalError
from protocol.items import parse_text
from protocol.options import shown, shown_key

FIELDS = ("model", "query", "documents", "top_n", "return_documents", "instruction", "options", "user")
_ITEM = re.compile(r"^items(\[\d+\])(\.text|\.token_ids)?$")


def parse_rerank(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Call that the body decides. Raises InvalidInput."""
    for name, value in body.items():
        if name not in FIELDS and value is not None:
            known = ", ".join(FIELDS)
            where = shown_key(name)
            raise InvalidInput(f"{where} is no field of rerank; there are: {known}", param=where)
    parse_shape(body)
    options = {"normalize": True, **_options(body.get("options"))}
    if body.get("instruction") is not None:
        options["instruction"] = body["instruction"]
    return {
        "model": openai.parse_model(body.get("model")),
        "query": {"text": parse_query(body.get("query"))},
        "items": [{"text": text} for text in _parse_documents(body.get("documents"))],
        "options": options,
        "paths": {"instruction": "instruction"} if "instruction" in body else {},
    }


def parse_shape(body: Mapping[str, Any]) -> tuple[int | None, bool]:
    """How many results are wanted, and whether with their documents."""
    top, whole = body.get("top_n"), body.get("return_documents")
    if top is not None and (type(top) is not int or top < 1):
        raise InvalidInput(f"top_n must be a whole number of at least 1, not {shown(top)}", param="top_n")
    if whole is not None and not isinstance(whole, bool):
        raise InvalidInput(f"return_documents must be true or false, not {shown(whole)}", param="return_documents")
    return top, bool(whole)


def parse_query(raw: Any) -> str:
    query = parse_text(raw, "query")
    if not query.strip():
        raise InvalidInput("query is blank: there is nothing to compare with", param="query")
    return query


def _parse_documents(raw: Any) -> list[str]:
    if not isinstance(raw, list):
        raise InvalidInput(f"documents must be a list of texts, not {shown(raw)}", param="documents")
    if not 1 <= len(raw) <= MAX_CANDIDATES:
        raise InvalidInput(f"documents must hold 1 to {MAX_CANDIDATES} texts, not {len(raw)}", param="documents")
    return [_parse_document(document, f"documents[{index}]") for index, document in enumerate(raw)]


def _parse_document(raw: Any, where: str) -> str:
    """A string, or a map with its text; other keys of such a map were never read for the score."""
    if isinstance(raw, Mapping):
        return parse_text(raw.get("text"), f"{where}.text")
    return parse_text(raw, where)


def _options(raw: Any) -> Mapping[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise InvalidInput(f"options must be a map, not {shown(raw)}", param="options")
    return {name: value for name, value in raw.items() if value is not None}


def render(outcome: Outcome, top: int | None, with_documents: bool, version: str) -> HttpResponse:
    """Best first; of equal scores the one that was given first."""
    body = {
        "id": outcome.call.id,
        "object": "list",
        "model": outcome.call.model,
        "results": [_result(outcome, index, with_documents) for index in best_first(outcome)[:top]],
        "usage": {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens},
        "meta": {"api_version": {"version": version}},
    }
    return respond(native.dumps(body), JSON, headers={"X-Request-ID": outcome.call.id})


def best_first(outcome: Outcome) -> list[int]:
    return sorted(range(len(outcome.results)), key=lambda index: -outcome.results[index]["score"])


def _result(outcome: Outcome, index: int, with_documents: bool) -> dict[str, Any]:
    found = outcome.results[index]
    result: dict[str, Any] = {"index": index, "relevance_score": found["score"]}
    if found.get("truncated"):
        result["truncated"] = True
    if with_documents:
        result["document"] = {"text": outcome.call.items[index]["text"]}
    return result


def render_error(error: ShoalError, request_id: str) -> HttpResponse:
    """OpenAI's shape, as Jina's clients read it, with the `message` on top that Cohere's look for."""
    body, headers = openai.error_body(error, request_id, lambda param: rename(param, "documents"))
    return json_response({**body, "message": error.message}, error.status, headers)


def rename(param: str, name: str) -> str:
    """Workers name items and query in native words."""
    return "query" if param == "query.text" else _ITEM.sub(rf"{name}\1", param)
