"""The load generator, against a server of a few lines whose faults are known."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from bench import load, texts
from bench.outcome import Outcome
from bench.wire import DIALECTS, http_request

Answer = Callable[[bytes], bytes | None]  # body of a request -> response; None closes the connection


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


class Server(asyncio.Protocol):
    """Answers each request with what `answer` says, in two pieces."""

    def __init__(self, answer: Answer, open_now: set[asyncio.Transport]) -> None:
        self._answer = answer
        self._open_now = open_now
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_now.add(transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        whole = load.response_end(self._buffer)
        if whole is None:
            return
        start, end = whole
        body, self._buffer = self._buffer[start:end], self._buffer[end:]
        answer = self._answer(body)
        if answer is None:
            self._transport.close()
            return
        self._transport.write(answer[:20])
        asyncio.get_running_loop().call_soon(self._transport.write, answer[20:])


Serve = Callable[[Answer], Awaitable[str]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[asyncio.Server] = []
    open_now: set[asyncio.Transport] = set()

    async def start(answer: Answer) -> str:
        server = await asyncio.get_running_loop().create_server(lambda: Server(answer, open_now), "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
    for transport in open_now:
        transport.abort()
    await asyncio.sleep(0)  # aborted transports close their sockets on the loop's next turn


def requests(url: str, count: int) -> list[bytes]:
    return [http_request(url, "/echo", str(number).encode()) for number in range(count)]


def echoed(index: int, status: int, body: bytes) -> str | None:
    return None if body == str(index).encode() else f"{index}: {status} {body!r}"


async def test_every_request_is_sent_once_and_checked(serve: Serve) -> None:
    url = await serve(ok)

    outcome = await load.fire(url, requests(url, 50), echoed, connections=8, seconds=10, count=50)

    assert sorted(outcome.indexes) == list(range(50))
    assert (outcome.wrong, outcome.unanswered, outcome.good) == ([], 0, 50)


async def test_swapped_replies_are_found(serve: Serve) -> None:
    swap = {b"3": b"4", b"4": b"3"}
    url = await serve(lambda body: ok(swap.get(body, body)))

    outcome = await load.fire(url, requests(url, 10), echoed, connections=2, seconds=10, count=10)

    assert len(outcome.wrong) == 2


async def test_broken_connections_count_as_lost_and_are_opened_again(serve: Serve) -> None:
    url = await serve(lambda body: None if body == b"5" else ok(body))

    outcome = await load.fire(url, requests(url, 10), echoed, connections=1, seconds=10, count=10)

    assert outcome.answered == {200: 9, load.LOST: 1}


async def test_silence_is_reported_as_unanswered(serve: Serve) -> None:
    url = await serve(lambda body: b"" if body == b"1" else ok(body))

    outcome = await load.fire(url, requests(url, 4), echoed, connections=2, seconds=0.3, count=4, patience_s=0.2)

    assert outcome.unanswered == 1


async def test_a_busy_server_is_given_the_pause_it_asks_for(serve: Serve) -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0.2\r\ncontent-length: 0\r\n\r\n"
    url = await serve(lambda body: busy)

    outcome = await load.fire(url, requests(url, 4), lambda *_: None, connections=1, seconds=0.5)

    assert 2 <= outcome.answered[503] <= 4


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "https://127.0.0.1", "ftp://127.0.0.1"])
async def test_only_this_machine_is_loaded(url: str) -> None:
    with pytest.raises(ValueError):
        await load.fire(url, [b""], echoed, connections=1, seconds=1)


def test_the_first_good_response_asked_for_after_a_fault_ends_the_gap() -> None:
    outcome = Outcome(started=100.0)
    outcome.ended.extend([5.0, 6.0, 9.0])
    outcome.took.extend([4.0, 0.5, 1.0])
    outcome.statuses.extend([200, 503, 200])

    assert outcome.gap_after(since=103.0) == 6.0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_requests_are_whole_http(dialect: str) -> None:
    request = DIALECTS[dialect].request("http://127.0.0.1:8080", "org/name:profile", "ünïcode")

    head, _, body = request.partition(b"\r\n\r\n")

    assert f"Content-Length: {len(body)}".encode() in head


def test_texts_are_the_same_for_a_seed_and_all_different() -> None:
    assert texts.mixed(300, seed=4) == texts.mixed(300, seed=4)
    assert len(set(texts.spread(500))) == 500


def test_the_spread_of_lengths_goes_from_one_word_to_the_longest() -> None:
    lengths = [len(text.split()) for text in texts.spread(500, longest=2000)]

    assert (min(lengths), max(lengths)) == (1, 2000)
