"""Request bodies, from bytes to a map: strict JSON, or MessagePack without anything that could hide an object.

The fast path is one call. Only a body that was refused is looked at again, to name the field that was wrong.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack
import orjson

from protocol import parts
from protocol.errors import InvalidInput
from protocol.options import shown, shown_key

_BOM = b"\xef\xbb\xbf"
_MSGPACK = ("application/msgpack", "application/x-msgpack")
_EXPLAINED_BYTES = 1 << 20  # larger bodies are refused without a second look
_LONGEST_INTEGER = 300  # digits; what is longer is infinite as a float
_MAX_DIMENSIONS = 8
_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")  # kind and bytes


def is_msgpack(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() in _MSGPACK


def read_map(content: bytes, content_type: str) -> dict[str, Any]:
    """The body as a map. Of a key given twice the last one counts. Raises InvalidInput."""
    if not content:
        raise InvalidInput("the body is empty")
    body = _read_msgpack(content) if is_msgpack(content_type) else _read_json(content)
    if not isinstance(body, dict):
        raise InvalidInput(f"the body must be a map, not {shown(body)}")
    return body


def wants_msgpack(accept: str, content_type: str) -> bool:
    """Whoever names MessagePack gets it; so does a MessagePack body, unless its caller accepts only something else."""
    accept = accept.lower()
    if "msgpack" in accept:
        return True
    return is_msgpack(content_type) and (not accept or "*/*" in accept or "application/*" in accept)


def _read_json(content: bytes) -> Any:
    content = content.removeprefix(_BOM)
    parts.check_json(content)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        param = _blame(content, _read_leniently)
        raise InvalidInput(f"the body is not valid JSON: {error}", param=param) from None


def _read_leniently(content: bytes) -> Any:
    """Python's own reader lets pass what JSON does not have, so that it can be found."""
    return json.loads(content, parse_int=lambda digits: math.inf if len(digits) > _LONGEST_INTEGER else int(digits))


def _read_msgpack(content: bytes) -> Any:
    try:
        return parts.unpack(content, strict_map_key=False, object_hook=_check_array, ext_hook=_refuse_extension)
    except _Unsafe as error:
        param = _blame(content, _unpack_marking)
        raise InvalidInput(f"the body is not accepted: {error}", param=param) from None
    except UnicodeDecodeError:
        param = _blame(content, _unpack_escaping)
        raise InvalidInput("the body holds a string that is not UTF-8", param=param) from None
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"the body is not valid MessagePack: {str(error)[:80] or type(error).__name__}") from None


class _Unsafe(Exception):
    """An array of objects, or an extension type."""


class _Marked:
    """Stands where something unsafe was."""


def _check_array(value: dict[Any, Any]) -> dict[Any, Any]:
    """A map with the key b"nd" claims to be a NumPy array; only plain numbers may be."""
    if b"nd" in value and not _is_plain_array(value):
        raise _Unsafe("arrays hold plain numbers, in the type, shape and size they claim")
    return value


def _is_plain_array(value: Mapping[Any, Any]) -> bool:
    dtype, shape, data = value.get(b"type"), value.get(b"shape", []), value.get(b"data")
    if not isinstance(dtype, str) or dtype[:1] not in "<>|=" or dtype[1:] not in _NUMBERS:
        return False
    if value.get(b"kind", b"") not in (b"", "") or not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        return False
    if not all(type(size) is int and size >= 0 for size in shape):
        return False
    return isinstance(data, bytes) and len(data) == math.prod(shape) * int(dtype[2:])


def _refuse_extension(code: int, data: bytes) -> Any:
    raise _Unsafe("extension types are not accepted")


def _unpack_marking(content: bytes) -> Any:
    return msgpack.unpackb(
        content,
        strict_map_key=False,
        object_hook=lambda value: _Marked() if b"nd" in value and not _is_plain_array(value) else value,
        ext_hook=lambda code, data: _Marked(),
    )


def _unpack_escaping(content: bytes) -> Any:
    return msgpack.unpackb(content, strict_map_key=False, unicode_errors="surrogateescape")


def _blame(content: bytes, read: Callable[[bytes], Any]) -> str | None:
    """The path of the first value that may not be there, as `items[3].text`; None if it cannot be told."""
    if len(content) > _EXPLAINED_BYTES:
        return None
    try:
        return next(_wrong_values(read(content), ""), None)
    except (ValueError, TypeError, RecursionError):
        return None


def _wrong_values(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _wrong_values(inner, f"{path}.{shown_key(key)}".removeprefix("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _wrong_values(inner, f"{path}[{index}]")
    elif isinstance(value, _Marked) or (isinstance(value, float) and not math.isfinite(value)) or _is_broken(value):
        yield path


def _is_broken(value: Any) -> bool:
    if not isinstance(value, str) or value.isascii():
        return False
    return any("\ud800" <= character <= "\udfff" for character in value)
