"""A message's headers, read without trust: whatever a client of the broker may have put there, nothing raises but a
ShoalError that can be answered."""

from collections.abc import Mapping
from typing import Any

from protocol import clock, names
from protocol.errors import InvalidInput
from protocol.messages import HEADER, TASK_PREFIX, Request
from protocol.spec import PRIMITIVES

MAX_ID_CHARACTERS = 128

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "digest": str,
    "cost": int,
    "count": int,
    "deadline": (int, float),
    "published": (int, float),
    "reply": (str, type(None)),
    "store": bool,
    "key": (str, type(None)),
}
_MAILBOX = names.mailbox("")


def request_id(headers: Mapping[str, Any]) -> str | None:
    """The id, if it is one that an answer can be given under."""
    value = headers.get("id")
    return value if isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARACTERS else None


def read_request(headers: Mapping[str, Any], task_name: str) -> Request | None:
    """What a gateway wrote, or None if none did. Raises InvalidInput."""
    if headers.get("eta") is not None:
        raise InvalidInput("eta and countdown are not supported; send the task when it should run", param="eta")
    known_id = request_id(headers)
    if known_id is None:
        raise InvalidInput("the task's id must be a short string", param="id")
    header = headers.get(HEADER)
    if header is None:
        return None
    if not isinstance(header, Mapping):
        raise InvalidInput(f"the message's {HEADER} header cannot be read", param=HEADER)
    try:
        request = Request.from_header(known_id, header)
    except (TypeError, KeyError):
        raise InvalidInput(f"the message's {HEADER} header is not of this version", param=HEADER) from None
    _check(request, task_name)
    return request


def nominal_request(headers: Mapping[str, Any], task_name: str) -> Request:
    """A stand-in for a request that could not be read, good enough to answer it: wherever a reply may be looked for."""
    header = headers.get(HEADER)
    given = header if isinstance(header, Mapping) else {}
    reply, store = given.get("reply"), given.get("store")
    model = given.get("model")
    has_mailbox = _is_mailbox(reply)
    return Request(
        id=request_id(headers) or "",
        primitive=task_name.removeprefix(TASK_PREFIX),
        model=model[:200] if isinstance(model, str) else "",
        digest="",
        cost=1,
        count=0,
        deadline=clock.now(),
        published=clock.now(),
        reply=reply if has_mailbox else None,
        store=store if isinstance(store, bool) else not has_mailbox,
    )


def _check(request: Request, task_name: str) -> None:
    for name, kinds in _KINDS.items():
        if not isinstance(getattr(request, name), kinds):
            raise InvalidInput(f"the header's {name} is of the wrong type", param=f"{HEADER}.{name}")
    if request.primitive not in PRIMITIVES or task_name != TASK_PREFIX + request.primitive:
        raise InvalidInput("the header's primitive is not the task's", param=f"{HEADER}.primitive")
    if request.lane not in names.LANES:
        raise InvalidInput(f"the header's lane must be one of {', '.join(names.LANES)}", param=f"{HEADER}.lane")
    if request.cost < 0 or request.count < 0:
        raise InvalidInput("the header's cost and count cannot be negative", param=f"{HEADER}.cost")
    if request.reply is not None and not _is_mailbox(request.reply):
        raise InvalidInput("the header's reply is not a mailbox", param=f"{HEADER}.reply")


def _is_mailbox(value: Any) -> bool:
    """A message must not make a worker write to any other key."""
    return isinstance(value, str) and value.startswith(_MAILBOX) and len(value) <= 2 * MAX_ID_CHARACTERS
