"""A request as it crosses the broker: a plain Celery protocol-2 message whose header says what scheduling needs.

The header lets a worker queue, drop or cancel a request without decoding its body; the body is the task's keyword
arguments `{model, items, options}`, with `query` for score, or `{model, blob}` when all that waits in the blob store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HEADER = "shoal"
TASK_PREFIX = "shoal."


@dataclass(frozen=True, slots=True)
class Request:
    """The scheduling facts of one call or part; `deadline` and `published` are unix times in seconds."""

    id: str
    primitive: str
    model: str  # as the caller addressed it, profile included
    digest: str
    cost: int  # estimated, in padded-token equivalents
    count: int  # items
    deadline: float
    published: float
    lane: str = "interactive"
    reply: str | None = None  # mailbox key; None = nobody waits
    store: bool = False  # keep the result for polling by id
    key: str | None = None  # prefix of the API key, for fair shares and usage; never the secret

    def to_header(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "id"}

    @classmethod
    def from_header(cls, request_id: str, header: Mapping[str, Any]) -> "Request":
        """Raises TypeError or KeyError when the header was not written by a gateway of this version."""
        return cls(id=request_id, **header)


@dataclass(frozen=True, slots=True)
class Payload:
    """The decoded body: items as the dialect left them (plain maps), options resolved against the profile."""

    items: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] | None = None  # score only: the item that all others are compared with

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"items": self.items, "options": self.options}
        return wire if self.query is None else {**wire, "query": self.query}


def celery_headers(request: Request, origin: str) -> dict[str, Any]:
    """Headers of a Celery protocol-2 message for `request`; equal to what `apply_async` would send, plus ours.

    `argsrepr` is what logs, events and Flower show: the model and a count, never customer text.
    """
    return {
        "lang": "py",
        "task": TASK_PREFIX + request.primitive,
        "id": request.id,
        "root_id": request.id,
        "parent_id": None,
        "shadow": None,
        "group": None,
        "group_index": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        "eta": None,
        "expires": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": f"({request.model!r}, {request.count} items)",
        "kwargsrepr": "{}",
        "origin": origin,
        "ignore_result": not request.store,
        HEADER: request.to_header(),
    }


# callbacks, errbacks, chain and chord of a Celery message body; ours never carry any
EMBED: dict[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
