"""The items of a call, as every dialect and every plain Celery client may write them, made uniform where they enter.

An item is a map with an `id` perhaps, and with at least one input: `text` (or `token_ids` of the served model's own
vocabulary), `images`, `audio`, `video`, `document`. Media are maps with `data`, as bytes or base64.
"""

from collections.abc import Mapping
from typing import Any

from protocol import media
from protocol.errors import InvalidInput
from protocol.messages import Payload
from protocol.options.reading import is_unicode, shown
from protocol.spec import ModelSpec

MAX_ITEMS = 4096
MAX_TEXT_BYTES = 2 << 20
MAX_ID_CHARACTERS = 512
_LARGEST_TOKEN_ID = (1 << 31) - 1

# An item's key → the input, in a spec's words, that a model must read to be given it
INPUTS = {
    "text": "text",
    "token_ids": "text",
    "images": "image",
    "audio": "audio",
    "video": "video",
    "document": "document",
}


def parse_items(raw: Any, path: str = "items") -> list[dict[str, Any]]:
    """Raises InvalidInput that names the item and field, as `items[3].text`. Keys that no item has are dropped."""
    if not isinstance(raw, list | tuple):
        raise InvalidInput(f"{path} must be a list of items, not {shown(raw)}", param=path)
    if not 1 <= len(raw) <= MAX_ITEMS:
        raise InvalidInput(f"{path} must hold 1 to {MAX_ITEMS} items, not {len(raw)}", param=path)
    return [parse_item(item, f"{path}[{index}]") for index, item in enumerate(raw)]


def parse_item(raw: Any, where: str) -> dict[str, Any]:
    """One item, or the query of a `score`; a string is an item with that text."""
    if isinstance(raw, str):
        return {"text": parse_text(raw, where)}
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"{where} must be a map or a string, not {shown(raw)}", param=where)
    item: dict[str, Any] = {}
    if raw.get("id") is not None:
        item["id"] = _parse_id(raw["id"], f"{where}.id")
    name = "text" if raw.get("text") is not None else "content"
    if raw.get(name) is not None:
        item["text"] = parse_text(raw[name], f"{where}.{name}")
    elif raw.get("token_ids") is not None:
        item["token_ids"] = parse_token_ids(raw["token_ids"], f"{where}.token_ids")
    for kind in media.KINDS:
        if raw.get(kind) is not None:
            item[kind] = media.parse(kind, raw[kind], f"{where}.{kind}")
    if item.keys() <= {"id"}:
        raise InvalidInput(f"{where} has no text and nothing else to read", param=f"{where}.text")
    return item


def check_inputs(payload: Payload, spec: ModelSpec) -> None:
    """Refuse what the model does not read. Raises InvalidInput that names the item's key."""
    unread = {key for key, read in INPUTS.items() if read not in spec.inputs}
    for where, item in placed(payload):
        for key in unread & item.keys():
            place, reads = f"{where}.{key}", ", ".join(spec.inputs)
            raise InvalidInput(f"{place} is not read by model {spec.model!r}, which reads {reads}", param=place)


def placed(payload: Payload) -> list[tuple[str, dict[str, Any]]]:
    """Every item with its place, a query first."""
    queries = [] if payload.query is None else [("query", payload.query)]
    return [*queries, *((f"items[{index}]", item) for index, item in enumerate(payload.items))]


def remote_media(payload: Payload) -> list[tuple[str, str, dict[str, Any]]]:
    """See `media.remote`."""
    return [found for where, item in placed(payload) for found in media.remote(item, where)]


def parse_text(raw: Any, where: str) -> str:
    """A text that may be empty: models answer it with the vector of nothing but their special tokens."""
    if not isinstance(raw, str):
        raise InvalidInput(f"{where} must be a string, not {shown(raw)}", param=where)
    if not is_unicode(raw):
        raise InvalidInput(f"{where} holds half of a surrogate pair, which is not text", param=where)
    if len(raw) > MAX_TEXT_BYTES // 4 and len(raw.encode()) > MAX_TEXT_BYTES:
        raise InvalidInput(f"{where} has more than {MAX_TEXT_BYTES} bytes", param=where)
    return raw


def parse_token_ids(raw: Any, where: str) -> list[int]:
    """Ids are not checked against the vocabulary here: only the model's preparer knows it."""
    if not isinstance(raw, list | tuple) or not raw:
        raise InvalidInput(f"{where} must be a list of token ids, not {shown(raw) if raw else 'empty'}", param=where)
    for index, token in enumerate(raw):
        if type(token) is not int or not 0 <= token <= _LARGEST_TOKEN_ID:
            raise InvalidInput(f"{where}[{index}] must be a token id, not {shown(token)}", param=where)
    return list(raw)


def _parse_id(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or len(raw) > MAX_ID_CHARACTERS or not is_unicode(raw):
        raise InvalidInput(f"{where} must be a string of at most {MAX_ID_CHARACTERS} characters", param=where)
    return raw
