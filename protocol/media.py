"""Images, audio, video and documents inside items: bytes with a format perhaps. Nothing is decoded here.

In MessagePack `data` is bytes; in JSON it is base64, with or without the `data:` prefix of browsers. In place of `data`
an item may name a `url`, which gateways fetch from hosts that the operator has allowed.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from protocol.errors import InvalidInput
from protocol.options.reading import shown, shown_key

KINDS = ("images", "audio", "video", "document")
MAX_IMAGES = 16  # of one item
MAX_FORMAT_CHARACTERS = 32
MAX_URL_CHARACTERS = 4096
MAX_SAMPLE_RATE = 768_000  # Hz

_FORMAT_ALIASES = {"jpg": "jpeg", "tif": "tiff", "markdown": "md", "htm": "html"}
# Formats under which the SDK's `extract` and browsers send documents
_MEDIA_TYPES = {
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "text/plain": "txt",
    "audio/mpeg": "mp3",
    "image/svg+xml": "svg",
}


def parse(kind: str, raw: Any, where: str) -> Any:
    """The value of an item's key `kind`. Raises InvalidInput that names the field."""
    if kind != "images":
        return _parse_one(kind, raw, where)
    if not isinstance(raw, list | tuple) or not 1 <= len(raw) <= MAX_IMAGES:
        raise InvalidInput(f"{where} must be a list of 1 to {MAX_IMAGES} images, not {shown(raw)}", param=where)
    return [_parse_one(kind, image, f"{where}[{index}]") for index, image in enumerate(raw)]


def remote(item: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The media of an item that name a `url` in place of data: the place of the url, the kind, the map itself."""
    for kind in item.keys() & set(KINDS):
        many = isinstance(item[kind], list)
        for index, one in enumerate(item[kind] if many else [item[kind]]):
            if "url" in one:
                yield f"{where}.{kind}{f'[{index}]' if many else ''}.url", kind, one


def _parse_one(kind: str, raw: Any, where: str) -> dict[str, Any]:
    if isinstance(raw, bytes | str):
        raw = {"data": raw}
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"{where} must be a map with data, not {shown(raw)}", param=where)
    known = ("data", "format", "url", "sample_rate") if kind == "audio" else ("data", "format", "url")
    for key in raw if kind == "audio" else ():
        if key not in known:
            raise InvalidInput(f"{where} has no {shown_key(key)}; it has: {', '.join(known)}", param=where)
    parsed: dict[str, Any] = {}
    if raw.get("data") is None and raw.get("url") is not None:
        parsed["url"] = _parse_url(raw["url"], f"{where}.url")
    else:
        parsed["data"], told = _parse_data(raw.get("data"), f"{where}.data")
        if told:
            parsed["format"] = told
    if raw.get("format") is not None:
        parsed["format"] = _parse_format(raw["format"], f"{where}.format")
    if kind == "audio" and raw.get("sample_rate") is not None:
        parsed["sample_rate"] = _parse_rate(raw["sample_rate"], f"{where}.sample_rate")
    return parsed


def _parse_data(raw: Any, where: str) -> tuple[bytes, str | None]:
    """The bytes, and the format that a `data:` prefix tells."""
    told = None
    if isinstance(raw, str):
        if raw.startswith("data:"):
            head, _, raw = raw.partition(",")
            told = _format_of(head[5:].partition(";")[0])
        try:
            raw = base64.b64decode(raw, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput(f"{where} must be bytes or valid base64", param=where) from None
    if not isinstance(raw, bytes):
        raise InvalidInput(f"{where} must be bytes or base64, not {shown(raw)}", param=where)
    if not raw:
        raise InvalidInput(f"{where} is empty", param=where)
    return raw, told


def _format_of(media_type: str) -> str | None:
    media_type = media_type.strip().lower()
    found = _MEDIA_TYPES.get(media_type, media_type.rpartition("/")[2].removeprefix("x-"))
    return _FORMAT_ALIASES.get(found, found)[:MAX_FORMAT_CHARACTERS] or None


def _parse_format(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or not 1 <= len(raw) <= MAX_FORMAT_CHARACTERS or not raw.isascii():
        raise InvalidInput(f"{where} must be a short name such as 'png', not {shown(raw)}", param=where)
    name = raw.lower().lstrip(".")
    return _FORMAT_ALIASES.get(name, name)


def _parse_url(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or not 1 <= len(raw) <= MAX_URL_CHARACTERS or not raw.isascii():
        raise InvalidInput(f"{where} must be a URL, not {shown(raw)}", param=where)
    return raw


def _parse_rate(raw: Any, where: str) -> int:
    if type(raw) is not int or not 1 <= raw <= MAX_SAMPLE_RATE:
        raise InvalidInput(f"{where} must be 1 to {MAX_SAMPLE_RATE} Hz, not {shown(raw)}", param=where)
    return raw
