"""A message's body, decoded late and without trust."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import redis
from kombu.exceptions import ContentDisallowed, DecodeError, KombuError

from protocol import blobs
from protocol.errors import InputTooLong, InvalidInput, TransportFailure
from protocol.messages import Payload
from protocol.native import Asked
from workers import decoding
from workers.receipts import Receipt

log = logging.getLogger("shoal.bodies")

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
    delete: Callable[[str], object]  # removes one
    max_bytes: int

    def load(self, receipt: Receipt) -> Payload:
        """The payload of a request, wherever it is. Raises InvalidInput, Expired, TransportFailure."""
        try:
            given = arguments(receipt.message, self.max_bytes)
        except InvalidInput:
            receipt.is_unreadable = True
            raise
        payload = self._payload(given)
        receipt.blob = given.get("blob")
        receipt.asked = _asked(receipt, payload)
        return payload

    def forget(self, receipt: Receipt) -> None:
        """Its answer is written, so nobody needs the payload again. What fails here ends by its own expiry."""
        if receipt.is_dead:
            return  # kept with its dead letter
        if receipt.blob is not None and receipt.blob.endswith(receipt.id):  # and not one that others wait for
            try:
                blobs.drop(receipt.blob, self.folder, self.delete)
            except (redis.RedisError, OSError) as error:
                log.warning("payload not dropped", extra={"request_id": receipt.id, "error": type(error).__name__})

    def _payload(self, given: Mapping[str, Any]) -> Payload:
        if "blob" not in given:
            return _checked(given.get("items"), given.get("options", {}), given.get("query"))
        try:
            data = blobs.fetch(given["blob"], self.folder, self.get)
            kept = blobs.unpack_payload(data)
        except redis.RedisError:
            raise TransportFailure("the request's payload could not be fetched") from None
        except _UNREADABLE:
            raise InvalidInput("the request's payload cannot be read", param="blob") from None
        return _checked(kept.items, kept.options, kept.query)


def _asked(receipt: Receipt, payload: Payload) -> Asked:
    ids = tuple(item.get("id") for item in payload.items)
    return Asked(receipt.request.primitive, receipt.request.model, ids, (payload.query or {}).get("id"))


def arguments(message: Any, max_bytes: int) -> Mapping[str, Any]:
    """The keyword arguments of a Celery message. Raises InvalidInput."""
    if len(message.body or b"") > max_bytes:
        raise InputTooLong(f"the message's body has more than {max_bytes} bytes")
    try:
        body = message.payload
        positional, given = body[0], body[1]
    except _UNREADABLE as error:
        if isinstance(error, DecodeError) and (refused := decoding.refusal(error)) is not None:
            raise refused from None
        raise InvalidInput("the message's body cannot be read; send keyword arguments as json or msgpack") from None
    if positional or not isinstance(given, Mapping):
        raise InvalidInput("arguments must be keywords: model, items, options, query")
    return given


def _checked(items: Any, options: Any, query: Any) -> Payload:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidInput("items must be a list of maps", param="items")
    if not isinstance(options, dict):
        raise InvalidInput("options must be a map", param="options")
    if query is not None and not isinstance(query, dict):
        raise InvalidInput("query must be a map", param="query")
    return Payload(items, options, query)
