"""Frames over a Unix socket: a 4-byte little-endian length, then one `protocol.codec` message."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

from protocol import codec

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 18


class Unsendable(ValueError):
    """A message with a value that no frame can hold, such as half a surrogate pair, or one of 4 GiB."""


def frame(message: dict[str, Any]) -> bytes:
    try:
        body = codec.pack(message)
        return _LENGTH.pack(len(body)) + body
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise Unsendable(f"a {message['op']} message cannot be packed: {type(error).__name__}") from error


class FrameBuffer:
    """Collects bytes as they arrive and gives whole messages back."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield codec.unpack(body)


def read_messages(sock: socket.socket) -> Iterator[dict[str, Any]]:
    """Messages from a blocking socket until the other side closes it."""
    buffer = FrameBuffer()
    while data := sock.recv(_CHUNK):
        yield from buffer.feed(data)
