"""ASGI's messages: a body in, an answer out. Messages are plain dicts, as ASGI has them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpResponse

from protocol.errors import BodyTooLarge, InvalidInput

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

LINGER_S = 5.0  # how long an unread body is still read, so that its sender gets to see the answer
SLOWEST_BYTES_S = 4096  # a body that comes more slowly than this is given up, however steadily it trickles


class ClientLeft(Exception):
    """Nobody is there to be answered."""


async def read_body(receive: Receive, declared: str, limit: int, silence_s: float) -> bytes:
    """The whole body, of which never more than `limit` is held; `declared` is its Content-Length.

    Raises BodyTooLarge, at once where the size is said, InvalidInput for one that does not come, ClientLeft.
    """
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        async with asyncio.timeout(silence_s) as patience:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return b"".join(chunks)
                patience.reschedule(min(clock(), started + size / SLOWEST_BYTES_S) + silence_s)
    except TimeoutError:
        raise InvalidInput(f"the body was not sent in time: {size} bytes in {clock() - started:.0f} s") from None


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more than {limit} bytes, the most that is taken here")


async def answer(response: HttpResponse, send: Send) -> None:
    await send(_start(response))
    await send({"type": "http.response.body", "body": response.content})


async def answer_early(response: HttpResponse, receive: Receive, send: Send) -> None:
    """Answer before the body was read. The rest is read and dropped for a while: a socket closed with unread data
    resets the connection, and the client would lose the answer."""
    response["Connection"] = "close"
    await send(_start(response))
    await send({"type": "http.response.body", "body": response.content, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body"})


def _start(response: HttpResponse) -> dict[str, Any]:
    headers = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in response.items()]
    headers.append((b"content-length", str(len(response.content)).encode()))
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}
