"""MessagePack with NumPy arrays as raw bytes, for everything that stays inside Shoal: mailbox, blobs, engine pipe.

The public wire format of arrays (byte-string keyed maps) is the native dialect's business, not this module's.
"""

from typing import Any

import msgpack
import numpy as np

from protocol import parts

_ARRAY = 1
_KINDS = "fiub"  # floats, ints, unsigned ints, booleans; never objects
_LONGEST_HEAD = 1024  # bytes of an array's dtype and shape; a reader of its own would refuse arrays of 100 MiB


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        head = msgpack.packb((value.dtype.str, value.shape))
        return msgpack.ExtType(_ARRAY, head + np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot cross a Shoal wire")


def _decode(code: int, data: bytes) -> Any:
    if code != _ARRAY:
        return msgpack.ExtType(code, data)
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:_LONGEST_HEAD])
    dtype, shape = unpacker.unpack()
    kind = np.dtype(dtype)
    if kind.kind not in _KINDS:
        raise ValueError(f"arrays of dtype {dtype!r} are not accepted")
    return np.frombuffer(data, dtype=kind, offset=unpacker.tell()).reshape(shape)


def pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value, default=_encode))


def unpack(data: bytes) -> Any:
    """Inverse of `pack`. Arrays are read-only views of `data`. Raises ValueError on malformed input."""
    return msgpack.unpackb(data, ext_hook=_decode, strict_map_key=False)


def unpack_bounded(data: bytes) -> Any:
    """The same for what others may have written; raises InvalidInput when it has too many maps, lists and keys."""
    return parts.unpack(data, parts.MOST_WRITTEN, ext_hook=_decode, strict_map_key=False)
