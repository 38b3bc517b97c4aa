"""A light closed-loop load generator: N keep-alive connections, each with one request on the way.

Its own CPU competes with the system under test, so requests are bytes made beforehand, responses are parsed as far as
needed, and each is handed to a checker that finds lost and swapped replies. It talks to this machine only.

    python -m bench.load --url http://127.0.0.1:8080 --model sentence-transformers/all-MiniLM-L6-v2 -c 64 -s 60
"""

import argparse
import asyncio
import ipaddress
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from bench import texts
from bench.outcome import Outcome
from bench.wire import DIALECTS

Check = Callable[[int, int, bytes], str | None]  # request's index, status, body -> what is wrong with it

LOST = 0  # status of a request whose connection broke before its response was whole
POLITE = (429, 503, 504)  # a client waits before it comes back
LONGEST_PAUSE_S = 5.0


class Shared:
    """One run's shared state: which request is next, when to stop, what came back."""

    def __init__(self, requests: Sequence[bytes], check: Check, seconds: float, count: int | None) -> None:
        self.requests = requests
        self.check = check
        self.outcome = Outcome()
        self.is_over = False
        self.until = self.outcome.started + seconds
        self._order = iter(range(count)) if count is not None else itertools.count()

    def take_next(self) -> int | None:
        """The request to send now, or None when the run is over."""
        number = next(self._order, None) if time.monotonic() < self.until else None
        if number is None:
            self.is_over = True
            return None
        return number % len(self.requests)

    def record(self, index: int, sent: float, status: int, body: bytes) -> None:
        now = time.monotonic()
        outcome = self.outcome
        outcome.ended.append(now - outcome.started)
        outcome.took.append(now - sent)
        outcome.statuses.append(status)
        outcome.indexes.append(index)
        complaint = self.check(index, status, body)
        if complaint is not None:
            outcome.wrong.append(complaint)


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request on the way."""

    def __init__(self, shared: Shared, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = shared
        self._loop = loop
        self._buffer = b""
        self._index: int | None = None
        self._sent = 0.0
        self.over = loop.create_future()

    @property
    def waiting(self) -> bool:
        return self._index is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._send()

    def _send(self) -> None:
        if self._transport.is_closing():  # lost while it paused: the next connection asks
            return
        index = self._shared.take_next()
        if index is None:
            self._transport.close()
            return
        self._index, self._sent = index, time.monotonic()
        self._transport.write(self._shared.requests[index])

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        whole = response_end(self._buffer)
        if whole is None:
            return
        start, end = whole
        assert self._index is not None, "a response to nothing"
        index, head, body = self._index, self._buffer[:start], self._buffer[start:end]
        self._index, self._buffer = None, self._buffer[end:]
        status = int(head[9:12])
        self._shared.record(index, self._sent, status, body)
        if b"\r\nconnection: close" in head.lower():
            self._transport.close()
        elif status in POLITE:
            self._loop.call_later(retry_after(head), self._send)
        else:
            self._send()

    def give_up(self) -> None:
        self._index = None
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._index is not None:
            self._shared.record(self._index, self._sent, LOST, b"")
            self._index = None
        if not self.over.done():
            self.over.set_result(None)


def response_end(buffer: bytes) -> tuple[int, int] | None:
    """Where the body of the first response starts and ends; None while it is not whole."""
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    length = _header(buffer[: head_end + 2], b"content-length")
    if length is None:
        raise ValueError("a response without Content-Length cannot be read here")
    end = head_end + 4 + int(length)
    return (head_end + 4, end) if len(buffer) >= end else None


def retry_after(head: bytes) -> float:
    given = _header(head, b"retry-after")
    return min(float(given), LONGEST_PAUSE_S) if given else 0.5


def _header(head: bytes, name: bytes) -> bytes | None:
    lower = head.lower()
    at = lower.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    value_at = at + len(name) + 3
    return head[value_at : head.index(b"\r\n", value_at)].strip()


async def fire(
    url: str,
    requests: Sequence[bytes],
    check: Check,
    *,
    connections: int,
    seconds: float,
    count: int | None = None,
    patience_s: float = 150.0,  # longer than a gateway keeps a call waiting
) -> Outcome:
    """Send `requests` round and round until `seconds` are over or `count` are sent, then wait for what is on its way.

    A connection that the server closes is opened again. Raises ValueError for a URL that is not this machine.
    """
    host, port = loopback(url)
    loop = asyncio.get_running_loop()
    shared = Shared(requests, check, seconds, count)
    cpu = time.process_time()
    open_now: set[Connection] = set()
    clients = [loop.create_task(_client(shared, loop, host, port, open_now)) for _ in range(connections)]
    done, late = await asyncio.wait(clients, timeout=seconds + patience_s)
    shared.outcome.unanswered = sum(connection.waiting for connection in open_now)
    for connection in open_now:
        connection.give_up()
    for client in late:
        client.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for client in done:
        client.result()
    shared.outcome.seconds = max(shared.outcome.ended, default=seconds)
    shared.outcome.cpu_s = time.process_time() - cpu
    return shared.outcome


def run(url: str, requests: Sequence[bytes], check: Check, **limits: Any) -> Outcome:
    """`fire` from code that is not async, on the cheapest event loop there is."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(fire(url, requests, check, **limits))


async def _client(
    shared: Shared, loop: asyncio.AbstractEventLoop, host: str, port: int, open_now: set["Connection"]
) -> None:
    while not shared.is_over and time.monotonic() < shared.until:
        try:
            _, connection = await loop.create_connection(lambda: Connection(shared, loop), host, port)
        except OSError:
            await asyncio.sleep(0.1)  # as a client would; the server may be restarting
            continue
        open_now.add(connection)
        await connection.over
        open_now.discard(connection)


def loopback(url: str) -> tuple[str, int]:
    """Host and port of a URL on this machine. Raises ValueError for any other: this is no tool for other people's."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url!r} is not an http:// URL")
    address = socket.gethostbyname(parts.hostname)
    if not ipaddress.ip_address(address).is_loopback:
        raise ValueError(f"{parts.hostname} is not this machine; the load generator only loads loopback addresses")
    return address, parts.port or 80


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    dialect = DIALECTS[options.dialect]
    mix = texts.from_file(options.texts) if options.texts else texts.mixed(options.count_texts, seed=options.seed)
    requests = [dialect.request(options.url, options.model, text, options.key) for text in mix]

    def check(index: int, status: int, body: bytes) -> str | None:
        if status != 200:
            return f"status {status}: {body[:200]!r}"
        return None if len(dialect.vectors(body)) == 1 else "not one vector"

    outcome = run(
        options.url, requests, check, connections=options.connections, seconds=options.seconds, count=options.n
    )
    print(outcome.summary())
    for complaint in outcome.wrong[:5]:
        print("  ", complaint)
    return 1 if outcome.wrong or outcome.unanswered else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bench.load", description="Load a Shoal on this machine with single-text calls.")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", required=True)
    parser.add_argument("--dialect", choices=DIALECTS, default="native")
    parser.add_argument("--key", default=os.environ.get("SHOAL_API_KEY"), help="API key, if the server wants one")
    parser.add_argument("--texts", help="file with one text a line; else texts of natural length are made up")
    parser.add_argument("--count-texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-c", "--connections", type=int, default=64)
    parser.add_argument("-s", "--seconds", type=float, default=10)
    parser.add_argument("-n", type=int, help="stop after this many requests")
    return parser


if __name__ == "__main__":
    sys.exit(main())
