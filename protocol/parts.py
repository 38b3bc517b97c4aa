"""How many maps, lists and keys a body may hold, found out before they are made.

One byte on the wire may be a hundred in memory, so a limit on bytes alone would let a small body fill a process.
"""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from protocol.errors import InvalidInput

MOST = 1 << 18  # of what a caller sends
MOST_WRITTEN = 2 * MOST  # of what a gateway makes of it: each item, a text perhaps, is a map of its own there
_LONGEST = 1 << 18  # room is made for what a list in MessagePack claims, before any of it is read
_OPENINGS = (b"[", b"{", b":")  # of lists, maps and the values of keys in JSON


def check_json(content: bytes, most: int = MOST) -> None:
    """Raises InvalidInput when this JSON has more than `most` parts."""
    if sum(map(content.count, _OPENINGS)) > most and _count_json(content) > most:
        raise _too_many(most)


def _count_json(content: bytes) -> int:
    """What stands in strings does not count."""
    marks = np.frombuffer(content.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    in_string = np.logical_xor.accumulate(marks == ord('"'))
    return sum(int(np.count_nonzero((marks == ord(opening)) & ~in_string)) for opening in _OPENINGS)


def unpack(
    content: bytes, most: int = MOST, object_hook: Callable[[Any], Any] = lambda value: value, **options: Any
) -> Any:
    """MessagePack with msgpack's `options`. Raises InvalidInput as soon as there are more than `most` parts.

    A body of no more bytes than that cannot hold them, and is not counted.
    """
    parts = 0

    def count(container: Any) -> Any:
        nonlocal parts
        parts += 1 + (len(container) if isinstance(container, dict) else 0)
        if parts > most:
            raise _too_many(most)
        return container

    if len(content) > most:
        options |= {"list_hook": count, "object_hook": lambda value: object_hook(count(value))}
    else:
        options["object_hook"] = object_hook
    return msgpack.unpackb(content, max_array_len=_LONGEST, max_map_len=_LONGEST, **options)


def _too_many(most: int) -> InvalidInput:
    return InvalidInput(f"the body holds more than {most} maps, lists and keys")
