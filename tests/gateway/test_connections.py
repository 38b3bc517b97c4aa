"""A client's connection: bounds of size and time before and after a request, and offers of other protocols declined."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from inference.connections import Connection

LARGE = 32 << 20  # more than the kernel keeps for a client that does not read
BODY = b"the body"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"


class Quick(Connection):
    """Waits for less time than a test has."""

    HEAD_BYTES = 4096
    HEAD_S = 0.3
    UNREAD_S = 0.3


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers path and body, or much when asked for /large."""
    content = b""
    while (message := await receive())["type"] == "http.request":
        content += message["body"]
        if not message["more_body"]:
            break
    answer = b"x" * LARGE if scope["path"] == "/large" else scope["path"].encode() + b" " + content
    length = (b"content-length", str(len(answer)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    config, state = Config(echo, http=Quick, log_config=None), ServerState()
    config.load()
    server = await asyncio.get_running_loop().create_server(lambda: Quick(config, state, {}), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()
    server.close()
    for connection in list(state.connections):
        connection.transport.abort()
    while state.connections:
        await asyncio.sleep(0.01)


async def talk(address: tuple[str, int], *pieces: bytes, pause: float = 0.02) -> bytes:
    """All that comes back until the server closes or stays silent for a second."""
    reader, writer = await asyncio.open_connection(*address)
    answer = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)
        async with asyncio.timeout(1):
            while piece := await reader.read(65536):
                answer += piece
    await hang_up(writer)
    return answer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def post(path: str, *headers: bytes, body: bytes = BODY) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: localhost", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


async def test_a_request_is_answered(address: tuple[str, int]) -> None:
    assert (await talk(address, post("/a", b"Connection: close"))).endswith(b"/a the body")


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_an_offer_of_http2_is_declined_and_the_request_answered(address: tuple[str, int], pause: float) -> None:
    head, body = post("/a", OFFER.rstrip()).split(b"\r\n\r\n")
    answer = await talk(address, head + b"\r\n\r\n", body + post("/b", b"Connection: close"), pause=pause)
    assert b"/a the body" in answer
    assert answer.endswith(b"/b the body")


async def test_many_offers_in_one_piece_are_declined_one_by_one(address: tuple[str, int]) -> None:
    answer = await talk(address, post("/a", OFFER.rstrip()) * 2000 + post("/b", b"Connection: close"))
    assert answer.count(b"/a the body") == 2000


async def test_a_request_to_be_connected_elsewhere_is_refused(address: tuple[str, int]) -> None:
    assert (await talk(address, b"CONNECT localhost:22 HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_what_is_no_http_is_refused(address: tuple[str, int]) -> None:
    assert (await talk(address, b"\x16\x03\x01\x00\xc8\x01" + b"\0" * 200)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "pieces",
    [
        [post("/a", b"X: " + b"a" * 5000)],
        [post("/" + "a" * 5000)],
        [post("/a", *[b"X: a"] * 1500)],
        [b"GET /a HTTP/1.1\r\nX: ", *[b"a" * 1000] * 5],
        [b"GET /a HTTP/1.1\r\n", *[b"X: a\r\n" * 200] * 4],
    ],
    ids=["long header", "long path", "many headers", "endless header", "endless headers"],
)
async def test_a_head_has_a_largest_size(address: tuple[str, int], pieces: list[bytes]) -> None:
    assert (await talk(address, *pieces)).startswith(b"HTTP/1.1 431 ")


async def test_bodies_do_not_count_as_heads(address: tuple[str, int]) -> None:
    answer = await talk(address, post("/a", body=b"a" * 100_000) + post("/b", b"Connection: close"))
    assert answer.endswith(b"/b the body")


@pytest.mark.parametrize(
    "pieces",
    [[], [b"GET /a HT"], [b"GET /a HTTP/1.1\r\nX: a\r\n"], [b"\r\n"], [post("/a"), b"\r\n"], [post("/a"), b"GET /b"]],
)
async def test_a_head_that_does_not_come_ends_the_connection(address: tuple[str, int], pieces: list[bytes]) -> None:
    started = time.monotonic()
    await talk(address, *pieces)
    assert 0.2 < time.monotonic() - started < 0.9


async def test_a_trickled_head_ends_the_connection(address: tuple[str, int]) -> None:
    started = time.monotonic()
    await talk(address, *[b"GET /a HTTP/1.1\r\nX: a"], *[b"a"] * 20, pause=0.02)
    assert time.monotonic() - started < 0.9


async def test_a_slow_body_is_the_handlers_business(address: tuple[str, int]) -> None:
    head, body = post("/a", b"Connection: close").split(b"\r\n\r\n")
    assert (await talk(address, head + b"\r\n\r\n", body[:2], body[2:], pause=0.5)).endswith(b"/a the body")


@pytest.mark.parametrize("header", [b"X: a", b"Connection: close"])
async def test_an_answer_that_nobody_reads_is_given_up(address: tuple[str, int], header: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address, limit=1024)
    writer.write(post("/large", header))
    await asyncio.sleep(1.2)
    size = 0
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 20):
            size += len(piece)
    assert size < LARGE
    await hang_up(writer)


async def test_an_answer_that_is_read_slowly_arrives(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address, limit=1024)
    writer.write(post("/large", b"Connection: close"))
    size = 0
    while piece := await reader.read(4 << 20):
        size += len(piece)
        await asyncio.sleep(0.01 if size < LARGE - (8 << 20) else 0)
    assert size > LARGE
    await hang_up(writer)
