"""What a plain Celery client means: its task arguments as the request and payload that a gateway would have made."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from catalog.snapshot import Resolved, Snapshot
from protocol import clock, names
from protocol.cost import estimate_cost
from protocol.errors import InvalidInput, ModelNotFound
from protocol.items import check_inputs, parse_item, parse_items, remote_media
from protocol.messages import TASK_PREFIX, Payload, Request
from protocol.options import parse_options, parse_profile, shown

ARGUMENTS = ("model", "items", "options", "query")


@dataclass(frozen=True, slots=True)
class Translated:
    """A request ready to be published to the queue of its model."""

    request: Request
    payload: Payload
    queue: str
    pool: str


def translate(headers: Mapping[str, Any], arguments: Mapping[str, Any], catalog: Snapshot, ttl_s: float) -> Translated:
    """Raises InvalidInput or ModelNotFound, as a gateway would. `headers` have passed `headers.read_request`."""
    primitive = str(headers["task"]).removeprefix(TASK_PREFIX)
    given = _known(arguments)
    resolved = _resolve(catalog, given["model"], given["options"])
    spec = resolved.model.spec
    options = parse_options(primitive, given["options"], spec, resolved.options)
    query = parse_item(given["query"], "query") if primitive == "score" else None
    payload = Payload(parse_items(given["items"]), options, query)
    check_inputs(payload, spec)
    for where, _, _ in remote_media(payload):
        raise InvalidInput(f"{where} is fetched by gateways only; send data", param=where)
    now = clock.now()
    request = Request(
        id=headers["id"],
        primitive=primitive,
        model=resolved.name,
        digest=spec.digest,
        cost=estimate_cost(payload, spec),
        count=len(payload.items),
        deadline=_deadline(headers, now + ttl_s),
        published=now,
        store=True,
    )
    queue = names.queue(spec.pool, spec.model, request.lane)
    return Translated(request, payload, queue, spec.pool)


def _known(arguments: Mapping[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if name not in ARGUMENTS:
            raise InvalidInput(f"{shown(name)} is not an argument; there are: {', '.join(ARGUMENTS)}", param="kwargs")
    options = arguments.get("options")
    if options is not None and not isinstance(options, Mapping):
        raise InvalidInput(f"options must be a map, not {shown(options)}", param="options")
    return {name: arguments.get(name) for name in ARGUMENTS} | {"options": options or {}}


def _resolve(catalog: Snapshot, model: Any, options: Mapping[str, Any]) -> Resolved:
    if not isinstance(model, str):
        raise InvalidInput(f"model must be the id of a model, not {shown(model)}", param="model")
    resolved = catalog.resolve(model)
    profile = parse_profile(options)
    if profile is None:
        return resolved
    try:
        return catalog.resolve(f"{resolved.model.spec.model}:{profile}")
    except ModelNotFound as error:
        raise InvalidInput(error.message, param="options.profile") from None


def _deadline(headers: Mapping[str, Any], latest: float) -> float:
    """Celery's `expires`, or `latest`: the task's result is not kept longer anyway."""
    expires = headers.get("expires")
    if expires is None:
        return latest
    try:
        moment = datetime.fromisoformat(expires)
    except (TypeError, ValueError):
        raise InvalidInput("expires must be a time in ISO 8601", param="expires") from None
    return min(latest, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
