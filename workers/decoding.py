"""Bodies of messages, decoded up to a limit: whoever may write to the broker may not fill a worker's memory with it."""

from typing import Any

import msgpack
from kombu import serialization
from kombu.exceptions import DecodeError
from kombu.utils import json

from protocol import parts
from protocol.errors import InvalidInput


def limit() -> None:
    """From now on kombu decodes no body of more parts in this process."""
    serialization.register("json", json.dumps, _read_json, "application/json", "utf-8")
    serialization.register("msgpack", _pack, _read_msgpack, "application/x-msgpack", "binary")


def refusal(error: DecodeError) -> InvalidInput | None:
    """What was wrong with a body that was not decoded, where it was its size; kombu wraps what decoders raise."""
    cause = error.args[0] if error.args else None
    return cause if isinstance(cause, InvalidInput) else None


def _read_json(body: Any) -> Any:
    parts.check_json(body.encode(errors="replace") if isinstance(body, str) else bytes(body), parts.MOST_WRITTEN)
    return json.loads(body)


def _read_msgpack(body: Any) -> Any:
    return parts.unpack(bytes(body), parts.MOST_WRITTEN)


def _pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value))
