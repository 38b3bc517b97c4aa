"""Which answers are the end of a request that nobody's mistake ended: those are kept as dead letters."""

import uuid
from typing import Any

from protocol import clock, dead_letters
from protocol.dead_letters import DeadLetter
from protocol.errors import InferenceError, WorkerLost
from protocol.replies import Reply
from workers.receipts import Receipt

CODES = frozenset({WorkerLost.code, InferenceError.code})  # poison, and what has had its starts
CONTENT_TYPE = "application/x-msgpack"  # of what gateways publish


def is_dead(receipt: Receipt, reply: Reply) -> bool:
    return reply.error is not None and (receipt.is_unreadable or reply.error["code"] in CODES)


def keep_arguments(receipt: Receipt, reply: Reply, worker_id: str) -> tuple[Any, ...]:
    """What the script that keeps dead letters is called with."""
    request, error = receipt.request, reply.error or {}
    letter = DeadLetter(
        id=request.id or str(uuid.uuid4()),
        primitive=request.primitive,
        model=request.model,
        lane=request.lane,
        key=request.key,
        count=request.count,
        cost=request.cost,
        published=request.published,
        died=clock.now(),
        attempts=receipt.attempts,
        code=error["code"],
        message=error["message"],
        worker=worker_id,
        queue=receipt.queue,
    )
    return dead_letters.keep_arguments(letter, _body(receipt))


def _body(receipt: Receipt) -> bytes:
    """The message's body if it could be sent again: what cannot be read says nothing of what it wanted."""
    body = getattr(receipt.message, "body", b"")
    is_ours = getattr(receipt.message, "content_type", "") == CONTENT_TYPE
    if receipt.is_unreadable or not is_ours or not isinstance(body, bytes | memoryview):
        return b""
    return bytes(body)
