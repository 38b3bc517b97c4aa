"""A call's way through the gateway: from what a dialect parsed, onto the model's queue, and back with the reply.

    accept          which model and options are meant, may this caller, what will it cost     400 403 404
    admit           would it be answered in time                                               429
    windows.place   wait while its key has enough unanswered work in that queue                503 504
    send            publish the request; a large payload goes into the blob store              503
    wait_for_reply  until the mailbox has it, its deadline passes, or waiting makes no sense   503 504

Whatever ends a call early is announced to the workers, so that nothing runs for a caller who has gone.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import msgpack

from catalog.snapshot import Resolved, Snapshot
from inference import metrics
from inference.admission import admit
from inference.calls import Accepted, Call, Outcome
from inference.cold import Patience, next_look, reason_to_stop
from inference.gateway import Gateway
from protocol import blobs, clock, errors, names
from protocol.cost import estimate_cost
from protocol.errors import Expired, GatewayTimeout, InferenceError, InvalidInput, ModelNotFound, ShoalError
from protocol.items import check_inputs, remote_media
from protocol.messages import EMBED, Payload, Request
from protocol.options import parse_options, parse_profile
from protocol.replies import Reply

Awaited = TypeVar("Awaited")

LATE_WORD_S = 0.5  # within it a worker says that it had a late call on its device and keeps the result


async def run(gateway: Gateway, call: Call) -> Outcome:
    """Answer `call` with the reply of whichever worker takes it. Raises ShoalError; never waits past the deadline."""
    started = time.perf_counter()
    with metrics.measure(call.primitive) as measured:
        accepted = accept(gateway, call, reply=gateway.mailbox.key)
        measured.model = accepted.spec.model
        admit(gateway.queues, accepted, held=gateway.windows.held(accepted))
        with gateway.mailbox.expect(call.id) as waiting, gateway.windows.place(accepted) as turn:
            try:
                await wait_for_reply(gateway, accepted, turn)
                with gateway.queues.awaiting(accepted):
                    await send(gateway, accepted)
                    reply = await wait_for_reply(gateway, accepted, waiting, LATE_WORD_S)
            except (ShoalError, asyncio.CancelledError):
                gateway.cancels.announce(accepted.spec.pool, call.id)
                raise
        results = results_of(accepted.request, reply)
        outcome = Outcome(call, results, reply.timing, reply.worker, (time.perf_counter() - started) * 1000)
        measured.outcome = outcome
        gateway.usage.add(outcome, accepted.spec.model)
        return outcome


async def submit(gateway: Gateway, call: Call) -> Accepted:
    """Hand `call` over to be done without anybody waiting: its result is kept under the call's id."""
    with metrics.measure(call.primitive) as measured:
        accepted = accept(gateway, call, store=True)
        measured.model = accepted.spec.model
        admit(gateway.queues, accepted)
        await gateway.tasks.add(accepted)
        try:
            await send(gateway, accepted)
        except (ShoalError, asyncio.CancelledError):
            gateway.cancels.announce(accepted.spec.pool, call.id)
            await gateway.tasks.discard(call.id)
            raise
        return accepted


def accept(gateway: Gateway, call: Call, *, reply: str | None = None, store: bool = False) -> Accepted:
    """Settle all that can be settled without a worker. Raises what the caller got wrong."""
    resolved = resolve(gateway.catalog.current, call)
    spec = resolved.model.spec
    if call.key is not None:
        call.key.permit(call.primitive, spec.model)
    options = parse_options(call.primitive, call.options, spec, resolved.options, call.paths)
    payload = Payload(call.items, options, call.query)
    check_inputs(payload, spec)
    now = clock.now()
    timeout_s = gateway.limits.request_timeout_s if call.timeout_s is None else call.timeout_s
    request = Request(
        id=call.id,
        primitive=call.primitive,
        model=resolved.name,
        digest=spec.digest,
        cost=estimate_cost(payload, spec),
        count=len(call.items),
        deadline=now + timeout_s,
        published=now,
        lane=call.lane or (call.key.lane if call.key else names.LANES[0]),
        reply=reply,
        store=store,
        key=call.key.prefix if call.key else None,
    )
    return Accepted(call, spec, request, payload)


def resolve(catalog: Snapshot, call: Call) -> Resolved:
    """The model that the call names, with the profile of its options if they pick one."""
    where = call.paths.get("profile", "options.profile")
    profile = parse_profile(call.options, where)
    resolved = catalog.resolve(call.model)
    if profile is None:
        return resolved
    try:
        return catalog.resolve(f"{resolved.model.spec.model}:{profile}")
    except ModelNotFound as error:
        raise InvalidInput(error.message, param=where) from None


async def send(gateway: Gateway, accepted: Accepted) -> None:
    """Returns when the request is with the broker. Raises QueueFull, QueueUnavailable, or what forbids a medium."""
    request, payload = accepted.request, accepted.payload
    await fetch_media(gateway, payload)
    body = _body({"model": request.model, **payload.to_wire()})
    if len(body) > blobs.INLINE_BYTES:
        body = _body({"model": request.model, "blob": await gateway.payloads.keep(request, payload)})
    await gateway.publisher.publish(request, accepted.queue, accepted.spec.pool, body)
    gateway.queues.published(accepted)


async def fetch_media(gateway: Gateway, payload: Payload) -> None:
    """Put data where items name a URL. Raises InvalidInput."""
    remote = remote_media(payload)
    if not remote:
        return
    fetches = (gateway.media.fetch(one["url"], where, kind) for where, kind, one in remote)
    contents = await asyncio.gather(*fetches, return_exceptions=True)
    room = gateway.limits.max_body_bytes
    for (where, _, one), content in zip(remote, contents, strict=True):
        if isinstance(content, BaseException):
            raise content
        room -= len(content)
        if room < 0:
            raise InvalidInput(f"{where} leads past the {gateway.limits.max_body_bytes} bytes of a call", param=where)
        one["data"] = content
        del one["url"]


def _body(arguments: Mapping[str, Any]) -> bytes:
    """A Celery message body: positional arguments, keyword arguments, links to other tasks."""
    return bytes(msgpack.packb([[], arguments, EMBED]))


async def wait_for_reply(
    gateway: Gateway, accepted: Accepted, waiting: "asyncio.Future[Awaited]", word_s: float = 0.0
) -> Awaited:
    """The worker's reply, or leave to send the request.

    Raises GatewayTimeout, or sooner Provisioning or ModelLoading, or what failed the mailbox.
    """
    started = time.monotonic()
    limits = gateway.limits
    patience = Patience(limits.provision_wait_s, limits.cold_wait_s, accepted.request.deadline - clock.now(), word_s)
    while not waiting.done():
        now = time.monotonic()
        stop = reason_to_stop(accepted.spec, gateway.fleet.current, now - started, patience, now)
        if stop is not None:
            raise stop
        await asyncio.wait((waiting,), timeout=next_look(now - started, patience))
    return waiting.result()


def results_of(request: Request, reply: Reply) -> list[dict[str, Any]]:
    """One result per item. A call succeeds whole or fails whole, by the first item's error.

    Only items to extract from may fail alone; when all of them failed as one, trying again may help them all.
    """
    if reply.error is not None and reply.error.get("code") == Expired.code:
        raise GatewayTimeout("no reply before the deadline")  # to its caller it is the same, whoever looked first
    if reply.error is not None:
        raise errors.from_wire(reply.error)
    results = reply.results or []
    if len(results) != request.count:
        raise InferenceError(f"a worker answered {len(results)} of {request.count} items")
    failures = [result["error"] for result in results if "error" in result]
    if failures and (request.primitive != "extract" or _may_pass(failures, len(results))):
        raise errors.from_wire(failures[0])
    return results


def _may_pass(failures: list[dict[str, Any]], count: int) -> bool:
    """Whether every item failed with the same code, one that clients retry."""
    codes = {failure["code"] for failure in failures}
    return len(failures) == count and len(codes) == 1 and "retry_after" in failures[0]
