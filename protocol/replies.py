"""What comes back: one Reply per request, several packed into one mailbox message per gateway and batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from protocol import codec


@dataclass(frozen=True, slots=True)
class Reply:
    """`results` holds one map per item in request order, or `error` says why there are none (`errors.to_wire`).

    A result map is what the primitive's dialects render: for encode `{output name: array}` plus `tokens` (how many
    the model read) and `truncated`; an item that failed alone is `{"error": {...}}`.
    """

    id: str
    results: list[dict[str, Any]] | None = None
    error: dict[str, Any] | None = None
    timing: dict[str, float] = field(default_factory=dict)  # milliseconds: queue, prepare, forward, finish
    worker: str = ""

    def to_wire(self) -> tuple[Any, ...]:
        return (self.id, self.results, self.error, self.timing, self.worker)


def pack(replies: Sequence[Reply]) -> bytes:
    return join([pack_one(reply) for reply in replies])


def pack_one(reply: Reply) -> bytes:
    return codec.pack(reply.to_wire())


def join(packed: Sequence[bytes]) -> bytes:
    """One mailbox element of replies that were packed one by one, so that one that cannot be packed harms no other."""
    return bytes(msgpack.Packer().pack_array_header(len(packed))) + b"".join(packed)


def unpack(data: bytes) -> list[Reply]:
    return [Reply(*fields) for fields in codec.unpack(data)]
