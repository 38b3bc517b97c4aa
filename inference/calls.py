"""A call as a dialect parsed it, and the outcome that the same dialect renders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from catalog.keys import KeyRecord
from protocol import names, native
from protocol.messages import Payload, Request
from protocol.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Call:
    """What a caller wants; options are still as written, since what they mean depends on the model."""

    id: str
    primitive: str
    model: str
    items: list[dict[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)  # where the caller wrote an option, for error messages
    query: dict[str, Any] | None = None  # score only
    lane: str | None = None  # None: the key's own
    timeout_s: float | None = None  # None: the gateway's setting
    key: KeyRecord | None = None  # None: an anonymous caller


@dataclass(frozen=True, slots=True)
class Accepted:
    """A call that may run: the model it resolved to, and what will cross the broker."""

    call: Call
    spec: ModelSpec
    request: Request
    payload: Payload

    @property
    def queue(self) -> str:
        return names.queue(self.spec.pool, self.spec.model, self.request.lane)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a call: one result map per item, in order, and where the time went (see `replies.Reply`)."""

    call: Call
    results: Sequence[Mapping[str, Any]]
    timing: Mapping[str, float]
    worker: str
    total_ms: float

    @property
    def tokens(self) -> int:
        return sum(result.get("tokens", 0) for result in self.results)

    @property
    def asked(self) -> native.Asked:
        """What the native body repeats of the call."""
        call = self.call
        return native.Asked(
            call.primitive, call.model, [item.get("id") for item in call.items], (call.query or {}).get("id")
        )
