"""Replies on their way into a gateway: whatever becomes of its connection, each reaches its call, and once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from inference.mailbox import BATCH, KEPT_S, TAKE, Mailbox
from protocol import names, replies
from protocol.replies import Reply
from tests.gateway.conftest import until
from tests.service.faults.proxy import Proxy


@pytest.fixture(params=["redis_url", "path_redis_url"])
def server(request: pytest.FixtureRequest) -> str:
    """The Valkey of the wheel and the machine's own Redis: waiting without taking is theirs to get right."""
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def workers(server: str) -> Iterator["redis.Redis"]:
    """What workers write with."""
    with redis.Redis.from_url(server) as client:
        yield client


@pytest.fixture
async def mailbox(proxy: Proxy) -> AsyncIterator[Mailbox]:
    mailbox = Mailbox(proxy.url, 4096)
    running = asyncio.create_task(mailbox.run())
    await until(lambda: mailbox.connected)
    yield mailbox
    while not running.done():
        running.cancel()
        await asyncio.wait([running], timeout=0.2)


def entry(*ids: str) -> bytes:
    return replies.pack([Reply(one, [{"tokens": 1}]) for one in ids])


async def test_replies_on_a_connection_that_is_cut_are_not_lost(
    mailbox: Mailbox, proxy: Proxy, workers: "redis.Redis"
) -> None:
    """Redis has answered with them, and the answer never came."""
    with mailbox.expect("a") as first, mailbox.expect("b") as second:
        proxy.mute()
        await until(lambda: _blocked(workers) == 1)
        workers.rpush(mailbox.key, entry("a"))
        workers.rpush(mailbox.key, entry("b"))
        await until(lambda: _blocked(workers) == 0)
        proxy.cut()
        assert [(await asyncio.wait_for(one, 5)).id for one in (first, second)] == ["a", "b"]
    await until(lambda: workers.llen(mailbox.key) == 0)


async def test_replies_are_not_lost_when_a_burst_of_them_is_cut(
    mailbox: Mailbox, proxy: Proxy, workers: "redis.Redis"
) -> None:
    waits = [mailbox.expect(f"r{n}") for n in range(2000)]
    waiting = [one.__enter__() for one in waits]

    def write() -> None:
        for n in range(2000):
            workers.rpush(mailbox.key, entry(f"r{n}"))

    writing = asyncio.create_task(asyncio.to_thread(write))
    for _ in range(4):
        await asyncio.sleep(0.03)
        proxy.mute()
        await asyncio.sleep(0.01)
        proxy.cut()
        await until(lambda: mailbox.connected)
    await writing
    found = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert [reply.id for reply in found] == [f"r{n}" for n in range(2000)]
    await until(lambda: workers.llen(mailbox.key) == 0)


async def test_what_a_cut_connection_had_sent_takes_nothing_out_later(
    mailbox: Mailbox, proxy: Proxy, workers: "redis.Redis"
) -> None:
    """Its acknowledgement comes out of some buffer after the next connection has begun to read."""
    reader = names.mailbox_reader(mailbox.key)
    cut: Any = workers.get(reader)
    proxy.cut()
    await until(lambda: workers.get(reader) != cut)
    workers.rpush("unread", entry("a"))
    with pytest.raises(redis.ResponseError, match="STALE"):
        workers.eval(TAKE, 2, "unread", reader, cut, 1, BATCH, KEPT_S)
    assert workers.llen("unread") == 1


async def test_an_entry_is_read_once_where_nothing_breaks(mailbox: Mailbox, workers: "redis.Redis") -> None:
    """Read twice, the second call of this id would be answered with the first one's reply."""
    for n in range(50):
        with mailbox.expect("same") as waiting:
            workers.rpush(mailbox.key, replies.pack([Reply("same", [{"tokens": n}])]))
            assert (await asyncio.wait_for(waiting, 5)).results == [{"tokens": n}]
    await until(lambda: workers.llen(mailbox.key) == 0)


async def test_an_idle_mailbox_asks_seldom(mailbox: Mailbox, workers: "redis.Redis") -> None:
    await until(lambda: _blocked(workers) == 1)
    workers.config_resetstat()
    await asyncio.sleep(2.5)
    assert workers.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"] <= 2


def _blocked(client: "redis.Redis") -> int:
    return int(client.info("clients")["blocked_clients"])
