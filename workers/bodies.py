"""A message's body, decoded late and without trust."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import redis
from kombu.exceptions import ContentDisallowed, KombuError

from protocol import blobs
from protocol.errors import InputTooLong, InvalidInput, TransportFailure
from protocol.messages import Payload
from workers.receipts import Receipt

# whatever a deserializer raises on bytes that are not what they claim to be
_UNREADABLE = (
    KombuError,
    ContentDisallowed,
    ValueError,
    TypeError,
    LookupError,
    msgpack.UnpackException,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies on whatever thread prepares items."""

    folder: Path  # of blobs kept in files
    get: Callable[[str], bytes | None]  # reads a Redis key
    max_bytes: int

    def load(self, receipt: Receipt) -> Payload:
        """The payload of a request, wherever it is. Raises InvalidInput, Expired, TransportFailure."""
        payload = self._payload(arguments(receipt.message, self.max_bytes))
        receipt.item_ids = tuple(item.get("id") for item in payload.items)
        return payload

    def _payload(self, given: Mapping[str, Any]) -> Payload:
        if "blob" not in given:
            return _checked(given.get("items"), given.get("options", {}))
        try:
            data = blobs.fetch(given["blob"], self.folder, self.get)
            kept = blobs.unpack_payload(data)
        except redis.RedisError:
            raise TransportFailure("the request's payload could not be fetched") from None
        except _UNREADABLE:
            raise InvalidInput("the request's payload cannot be read", param="blob") from None
        return _checked(kept.items, kept.options)


def arguments(message: Any, max_bytes: int) -> Mapping[str, Any]:
    """The keyword arguments of a Celery message. Raises InvalidInput."""
    if len(message.body or b"") > max_bytes:
        raise InputTooLong(f"the message's body has more than {max_bytes} bytes")
    try:
        body = message.payload
        positional, given = body[0], body[1]
    except _UNREADABLE:
        raise InvalidInput("the message's body cannot be read; send keyword arguments as json or msgpack") from None
    if positional or not isinstance(given, Mapping):
        raise InvalidInput("arguments must be keywords: model, items, options")
    return given


def _checked(items: Any, options: Any) -> Payload:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidInput("items must be a list of maps", param="items")
    if not isinstance(options, dict):
        raise InvalidInput("options must be a map", param="options")
    return Payload(items, options)
