"""The publisher's thread: batches, what it tells workers, and how RabbitMQ's queues are declared and missed."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from kombu.connection import Connection

from inference.broker import CONFIRM_S, connect
from inference.publisher import IDLE_S, Publisher
from protocol import names
from protocol.errors import QueueFull, QueueUnavailable, ShoalError
from protocol.messages import Request
from tests.gateway.conftest import until


class Lost(list[tuple[str, ShoalError]]):
    """What the publisher reported as returned."""

    def report(self, request_id: str, error: ShoalError) -> None:
        self.append((request_id, error))


def request(lane: str = "interactive", store: bool = False) -> Request:
    now = time.time()
    return Request(str(uuid.uuid4()), "encode", "acme/fake", "digest", 1, 1, now + 60, now, lane=lane, store=store)


@pytest.fixture
async def lost() -> Lost:
    return Lost()


@pytest.fixture
async def publisher(redis_url: str, lost: Lost) -> AsyncIterator[Publisher]:
    publisher = Publisher(redis_url, redis_url, 1000, lost.report)
    publisher.start()
    await until(lambda: publisher.connected)
    yield publisher
    await publisher.stop()


@pytest.fixture
async def rabbit(rabbitmq_url: str, redis_url: str, lost: Lost) -> AsyncIterator[Publisher]:
    publisher = Publisher(rabbitmq_url, redis_url, 1000, lost.report)
    publisher.start()
    await until(lambda: publisher.connected)
    yield publisher
    await publisher.stop()


@pytest.fixture
def queue() -> str:
    return f"shoal.test.{uuid.uuid4().hex[:8]}"


async def test_published_means_in_the_queue(publisher: Publisher, redis_url: str, queue: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for count in range(1, 4):
            await publisher.publish(request(), queue, "default", b"body")
            assert client.llen(queue) == count


async def test_many_at_once_arrive_in_order(publisher: Publisher, redis_url: str, queue: str) -> None:
    asked = [request() for _ in range(500)]
    await asyncio.gather(*(publisher.publish(one, queue, "default", b"body") for one in asked))
    with redis.Redis.from_url(redis_url) as client:
        raw: Any = client.lrange(queue, 0, -1)
    assert [json.loads(message)["headers"]["id"] for message in reversed(raw)] == [one.id for one in asked]


async def test_workers_are_woken_and_demand_is_known(publisher: Publisher, redis_url: str, queue: str) -> None:
    other = queue + ".other"
    await asyncio.gather(
        publisher.publish(request(), queue, "default", b"body"),
        publisher.publish(request(), queue, "default", b"body"),
        publisher.publish(request(), other, "gpu", b"body"),
    )
    with redis.Redis.from_url(redis_url) as client:
        woken: Any = client.xrange(names.wake_stream("default"))
        assert {name for _, fields in woken for name in json.loads(fields[b"q"])} == {queue}
        there: Any = client.xrange(names.wake_stream("gpu"))
        assert json.loads(there[0][1][b"q"]) == [other]
        score: Any = client.zscore(names.DEMAND, queue)
        assert score == pytest.approx(time.time(), abs=5)


async def test_full_queue_refuses_at_once(redis_url: str, lost: Lost, queue: str) -> None:
    publisher = Publisher(redis_url, redis_url, 2, lost.report)
    publisher.connected = True  # but its thread was never started, so nothing is taken
    waiting = [asyncio.create_task(publisher.publish(request(), queue, "default", b"")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await publisher.publish(request(), queue, "default", b"")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_caller_that_left_is_not_published(redis_url: str, lost: Lost, queue: str) -> None:
    publisher = Publisher(redis_url, redis_url, 10, lost.report)
    publisher.connected = True
    left = asyncio.create_task(publisher.publish(request(), queue, "default", b"left"))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    publisher.start()
    await until(lambda: publisher.connected)
    await publisher.publish(request(), queue, "default", b"stayed")
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen(queue) == 1
    await publisher.stop()


async def test_stop_publishes_what_was_handed_over(publisher: Publisher, redis_url: str, queue: str) -> None:
    calls = [asyncio.create_task(publisher.publish(request(), queue, "default", b"")) for _ in range(50)]
    await asyncio.sleep(0)
    await publisher.stop()
    await asyncio.gather(*calls)
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen(queue) == 50


def get(url: str, queue: str) -> Any:
    with Connection(url) as connection:
        return connection.channel().basic_get(queue, no_ack=True)


async def test_rabbitmq_queue_is_declared_before_its_first_message(
    rabbit: Publisher, rabbitmq_url: str, queue: str
) -> None:
    await rabbit.publish(request(), queue, "default", b"waited for")
    await asyncio.sleep(0.1)
    assert get(rabbitmq_url, queue).properties["delivery_mode"] == 1


async def test_rabbitmq_confirms_what_is_stored(rabbit: Publisher, rabbitmq_url: str, queue: str) -> None:
    await rabbit.publish(request("bulk", store=True), queue, "default", b"kept")
    assert get(rabbitmq_url, queue).properties["delivery_mode"] == 2


async def test_rabbitmq_queue_that_vanished_is_noticed_and_made_anew(
    rabbit: Publisher, rabbitmq_url: str, queue: str, lost: Lost
) -> None:
    await rabbit.publish(request(store=True), queue, "default", b"first")
    with Connection(rabbitmq_url) as connection:
        connection.channel().queue_delete(queue)
    with pytest.raises(QueueUnavailable):
        await rabbit.publish(request(store=True), queue, "default", b"into the void")
    await rabbit.publish(request(store=True), queue, "default", b"second")
    assert get(rabbitmq_url, queue).body == b"second"


async def test_rabbitmq_reports_an_unconfirmed_message_that_came_back(
    rabbit: Publisher, rabbitmq_url: str, queue: str, lost: Lost
) -> None:
    await rabbit.publish(request(), queue, "default", b"first")
    with Connection(rabbitmq_url) as connection:
        connection.channel().queue_delete(queue)
    void = request()
    with contextlib.suppress(QueueUnavailable):  # when it comes back at once
        await rabbit.publish(void, queue, "default", b"into the void")
    await until(lambda: [request_id for request_id, _ in lost] == [void.id])


async def test_rabbitmq_connection_that_was_closed_is_made_anew(
    rabbit: Publisher, rabbitmq_url: str, queue: str
) -> None:
    await rabbit.publish(request(), queue, "default", b"")
    await _close_connections(rabbitmq_url)
    await until(lambda: not rabbit.connected)
    await until(lambda: rabbit.connected)
    await rabbit.publish(request(), queue, "default", b"")


async def test_rabbitmq_that_lost_everything_is_noticed(
    rabbitmq_url: str, redis_url: str, lost: Lost, queue: str
) -> None:
    """As after a restart: messages that nobody asked it to keep are gone."""
    forgot: list[ShoalError] = []
    publisher = Publisher(rabbitmq_url, redis_url, 10, lost.report, forgot.append)
    publisher.start()
    await until(lambda: publisher.connected)
    await publisher.publish(request(), queue, "default", b"")
    await _reconnected(publisher, rabbitmq_url)
    assert forgot == []
    with Connection(rabbitmq_url) as connection:
        assert connection.channel().queue_purge(publisher._mark) == 1
    await _reconnected(publisher, rabbitmq_url)
    await until(lambda: forgot != [])
    assert forgot[0].retry_after
    await publisher.stop()


async def _reconnected(publisher: Publisher, url: str) -> None:
    await _close_connections(url)
    await until(lambda: not publisher.connected)
    await until(lambda: publisher.connected)


async def test_rabbitmq_messages_not_confirmed_are_lost_with_their_connection(
    rabbitmq_url: str, redis_url: str, lost: Lost, queue: str
) -> None:
    """Written into a socket is not taken: the caller hears at once, not at the deadline."""
    async with Proxy(rabbitmq_url) as proxy:
        publisher = Publisher(proxy.url, redis_url, 10, lost.report)
        publisher.start()
        await until(lambda: publisher.connected)
        await publisher.publish(request(), queue, "default", b"taken")
        await asyncio.sleep(0.2)
        proxy.is_deaf = True
        unheard = request()
        await publisher.publish(unheard, queue, "default", b"never read")
        proxy.cut()
        await until(lambda: lost != [])
        await publisher.stop()
    assert [request_id for request_id, _ in lost] == [unheard.id]
    assert lost[0][1].retry_after


async def test_rabbitmq_that_confirms_nothing_any_more_is_given_up_long_before_heartbeats_tell(
    rabbitmq_url: str, redis_url: str, lost: Lost, queue: str
) -> None:
    """S104: a connection that swallows everything; traffic that only waits for replies notices it as well."""
    async with Proxy(rabbitmq_url) as proxy:
        publisher = Publisher(proxy.url, redis_url, 10, lost.report)
        publisher.start()
        await until(lambda: publisher.connected)
        await publisher.publish(request(), queue, "default", b"taken")
        proxy.is_deaf = True
        unheard = request()
        await publisher.publish(unheard, queue, "default", b"never read")
        await until(lambda: lost != [], CONFIRM_S + 2)
        proxy.is_deaf = False
        await until(lambda: publisher.connected)
        await publisher.publish(request(), queue, "default", b"taken again")
        await publisher.stop()
    assert [request_id for request_id, _ in lost] == [unheard.id]
    assert lost[0][1].retry_after


async def test_a_link_in_an_unknown_state_says_nothing_more(rabbitmq_url: str) -> None:
    """An error that nobody foresaw may have left half a frame unread: what would be answered is never understood."""

    def fail() -> None:
        with connect(proxy.url):
            proxy.is_deaf = True
            raise RuntimeError("unforeseen")

    async with Proxy(rabbitmq_url) as proxy:
        with pytest.raises(RuntimeError, match="unforeseen"):
            await asyncio.to_thread(fail)
        assert proxy.swallowed == b""


class Proxy:
    """A broker's neighbour on the way to it, who may fall deaf and hang up."""

    def __init__(self, url: str) -> None:
        self.is_deaf = False
        self.swallowed = b""
        self._broker = urlsplit(url)
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._broker._replace(netloc=f"guest:guest@127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.sleep(0.05)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self.is_deaf = False

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(self._broker.hostname, self._broker.port)
        self._writers += [writer, broker_writer]
        await asyncio.gather(self._copy(reader, broker_writer), self._copy(broker_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.is_deaf:
                    self.swallowed += data
                else:
                    writer.write(data)
        writer.transport.abort()


async def _close_connections(url: str) -> None:
    """As an operator would; the broker lists only those of our own virtual host."""
    vhost = url.rpartition("/")[2]
    process = await asyncio.create_subprocess_exec(
        "rabbitmqctl", "close_all_connections", "-p", vhost, "test", stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0


class ScriptedLink:
    """A broker that says it is out of memory until it is looked at the second time."""

    blocked = True
    remembers = False

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.looks = 0

    def send(self, batch: Any) -> None:
        self.sent += [publication.request.id for publication in batch]

    def returned(self) -> set[str]:
        return set()

    def unsure(self) -> set[str]:
        return set()

    def check(self) -> None:
        self.looks += 1
        self.blocked = self.looks < 2

    def close(self) -> None: ...

    def abandon(self) -> None: ...


async def test_blocked_broker_refuses_until_it_has_room(redis_url: str, lost: Lost, queue: str) -> None:
    link = ScriptedLink()
    publisher = Publisher(redis_url, redis_url, 10, lost.report)
    publisher._loop = asyncio.get_running_loop()
    publisher.connected = True
    serving = asyncio.create_task(asyncio.to_thread(publisher._serve, link))
    with pytest.raises(QueueUnavailable, match="out of memory"):
        await publisher.publish(request(), queue, "default", b"")
    asked = request()
    await publisher.publish(asked, queue, "default", b"")
    assert link.sent == [asked.id]
    publisher._stopping.set()
    await serving


async def test_a_busy_link_is_looked_at_as_well(redis_url: str, lost: Lost, queue: str) -> None:
    """The connection for tasks is silent while only calls are published, and RabbitMQ would end it for that."""
    link = ScriptedLink()
    link.looks, link.blocked = 2, False
    publisher = Publisher(redis_url, redis_url, 10, lost.report)
    publisher._loop = asyncio.get_running_loop()
    publisher.connected = True
    serving = asyncio.create_task(asyncio.to_thread(publisher._serve, link))
    until_s = time.monotonic() + 2 * IDLE_S
    while time.monotonic() < until_s:
        await publisher.publish(request(), queue, "default", b"")
    publisher._stopping.set()
    await serving
    assert link.looks > 2
