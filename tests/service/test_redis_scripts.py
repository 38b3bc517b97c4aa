"""The scripts against a real server, and against stock kombu, which must be able to take over from a worker of ours."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

from protocol import names
from tests.service.harness import Gateway, Services, fake_model
from workers import redis_channel
from workers.leases import Leases

MODEL = fake_model("fake/scripted")
QUEUE = names.queue("default", "fake/scripted", "interactive")


class Taker:
    """A channel of ours, driven by hand."""

    def __init__(self, url: str) -> None:
        self.tags: list[str] = []
        self.messages: list[Any] = []
        self.connection = Connection(url, transport=redis_channel.Transport)
        self.channel: Any = self.connection.default_channel
        self.consumer = Consumer(self.channel, [Queue(QUEUE)], on_message=self.messages.append, accept=["msgpack"])
        self.consumer.consume()

    def pop(self, cost: int = 1000, any_: bool = False) -> tuple[bool, set[str]]:
        found: tuple[bool, set[str]] = self.channel.pop({QUEUE: (cost, any_)}, self.tags.append)
        return found


@pytest.fixture
def taker(redis_url: str) -> Iterator[Taker]:
    taker = Taker(redis_url)
    yield taker
    taker.connection.release()


@pytest.fixture
def gateway(on_redis: Services) -> Iterator[Gateway]:
    gateway = Gateway(on_redis)
    yield gateway
    gateway.close()


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def _leases(redis_url: str, visibility_s: float = 0.05) -> Leases:
    return Leases(redis_url, visibility_s, list)


def test_pop_takes_what_the_credit_allows(taker: Taker, gateway: Gateway) -> None:
    for _ in range(4):
        gateway.send(MODEL, cost=10)
    has_more, starved = taker.pop(cost=25)
    assert (len(taker.messages), has_more, starved) == (2, False, {QUEUE})


def test_pop_takes_one_of_any_cost_when_told_to(taker: Taker, gateway: Gateway) -> None:
    for _ in range(2):
        gateway.send(MODEL, cost=10)
    taker.pop(cost=1, any_=True)
    assert len(taker.messages) == 1


def test_pop_takes_oldest_first(taker: Taker, gateway: Gateway) -> None:
    sent = [gateway.send(MODEL) for _ in range(5)]
    taker.pop()
    assert [message.headers["id"] for message in taker.messages] == sent


def test_pop_registers_what_it_takes(taker: Taker, gateway: Gateway, client: "redis.Redis") -> None:
    gateway.send(MODEL)
    taker.pop()
    assert client.zrange("unacked_index", 0, -1) == [tag.encode() for tag in taker.tags]
    entry = client.hget("unacked", taker.tags[0])
    assert json.loads(entry)[1:] == ["", QUEUE]  # type: ignore[arg-type]


def test_a_pop_has_its_limits(taker: Taker, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_channel, "MOST_MESSAGES", 3)
    for _ in range(5):
        gateway.send(MODEL)
    assert taker.pop() == (True, set())
    assert len(taker.messages) == 3


@pytest.mark.parametrize(
    "entry", ["not json", "[]", '{"properties": {}}', '{"properties": {"delivery_tag": 5, "delivery_info": {}}}']
)
def test_an_entry_that_is_no_message_is_dropped_and_the_next_taken(
    taker: Taker, gateway: Gateway, client: "redis.Redis", entry: str
) -> None:
    client.lpush(QUEUE, entry)
    gateway.send(MODEL)
    taker.pop()
    assert len(taker.messages) == 1
    assert client.llen(QUEUE) == 0


def test_an_entry_that_only_python_cannot_read_is_dropped(taker: Taker, client: "redis.Redis") -> None:
    info = b'"delivery_info": {"exchange": "", "routing_key": "%s"}' % QUEUE.encode()
    client.lpush(QUEUE, b'{"body": "\xff\xfe", "properties": {"delivery_tag": "t", %s}}' % info)
    taker.pop()
    assert (taker.messages, client.hlen("unacked")) == ([], 0)


@pytest.mark.parametrize(
    ("encoding", "body"), [("base64", "!"), ("base64", 7), ("base64", None), ("rot13", "x"), (7, "x"), ([], "x")]
)
def test_a_body_that_is_not_what_it_says_still_arrives(
    taker: Taker, client: "redis.Redis", encoding: object, body: object
) -> None:
    properties = {
        "delivery_tag": "t",
        "delivery_info": {"exchange": "", "routing_key": QUEUE},
        "body_encoding": encoding,
    }
    client.lpush(QUEUE, json.dumps({"body": body, "headers": {"id": "x"}, "properties": properties}))
    taker.pop()
    assert taker.messages[0].headers == {"id": "x"}


def test_acknowledging_forgets(taker: Taker, gateway: Gateway, client: "redis.Redis") -> None:
    gateway.send(MODEL)
    taker.pop()
    taker.channel.acknowledge(taker.tags)
    assert (client.hlen("unacked"), client.zcard("unacked_index"), client.llen(QUEUE)) == (0, 0, 0)


def test_what_is_given_back_is_taken_next_and_not_called_redelivered(taker: Taker, gateway: Gateway) -> None:
    first = gateway.send(MODEL)
    taker.pop(cost=0, any_=True)
    gateway.send(MODEL)
    taker.channel.give_back(taker.messages.pop(), QUEUE)
    taker.pop(cost=0, any_=True)
    assert taker.messages[0].headers["id"] == first
    assert not taker.messages[0].delivery_info.get("redelivered")


def test_a_sweep_puts_expired_requests_back_as_redelivered(taker: Taker, gateway: Gateway, redis_url: str) -> None:
    first = gateway.send(MODEL)
    taker.pop()
    gateway.send(MODEL)
    time.sleep(0.1)
    assert _leases(redis_url).sweep() == 1
    taker.pop(cost=0, any_=True)
    assert taker.messages[-1].headers["id"] == first
    assert taker.messages[-1].delivery_info["redelivered"] is True


def test_a_renewed_lease_is_not_swept(taker: Taker, gateway: Gateway, redis_url: str) -> None:
    gateway.send(MODEL)
    taker.pop()
    time.sleep(0.2)
    leases = Leases(redis_url, 0.15, lambda: taker.tags)
    leases.renew()
    assert leases.sweep() == 0


def test_after_a_silence_owners_renew_before_anything_is_swept(
    taker: Taker, gateway: Gateway, redis_url: str, client: "redis.Redis"
) -> None:
    """As when Redis stood still. Who is late twice in a row sweeps: it may always be late."""
    gateway.send(MODEL)
    taker.pop()
    turns = iter([0.0, 0.2, 10.0, 20.0])
    sweeper = Leases(redis_url, 0.6, list, clock=lambda: next(turns))
    for _ in range(2):
        sweeper.turn()
    time.sleep(0.7)
    sweeper.turn()
    assert client.llen(QUEUE) == 0
    sweeper.turn()
    assert client.llen(QUEUE) == 1


def test_a_lease_that_is_gone_is_not_renewed_into_being(redis_url: str, client: "redis.Redis") -> None:
    Leases(redis_url, 5, lambda: ["acknowledged long ago"]).renew()
    assert client.zcard("unacked_index") == 0


def test_an_owner_that_comes_back_keeps_what_a_sweeper_had_claimed(
    taker: Taker, gateway: Gateway, redis_url: str, client: "redis.Redis"
) -> None:
    gateway.send(MODEL)
    taker.pop()
    time.sleep(0.1)
    sweeper = _leases(redis_url)
    tag, score, entry = sweeper.claim()
    Leases(redis_url, 5, lambda: taker.tags).renew()
    assert sweeper.put_back(tag, score, entry) == 0
    assert (client.hlen("unacked"), client.llen(QUEUE)) == (1, 0)


def test_requests_of_ordinary_celery_workers_are_left_to_them(redis_url: str, client: "redis.Redis") -> None:
    client.hset("unacked", "t", json.dumps([{"properties": {}}, "", "ops"]))
    client.zadd("unacked_index", {"t": 1.0})
    assert _leases(redis_url).sweep() == 0
    assert client.zscore("unacked_index", "t") == 1.0


def test_an_expired_entry_that_cannot_be_read_is_dropped(redis_url: str, client: "redis.Redis") -> None:
    client.hset("unacked", "t", "no json")
    client.zadd("unacked_index", {"t": 1.0})
    assert _leases(redis_url).sweep() == 0
    assert (client.hlen("unacked"), client.zcard("unacked_index")) == (0, 0)


def test_a_message_of_a_bound_exchange_returns_to_its_queue(redis_url: str, client: "redis.Redis") -> None:
    """As plain clients send: to an exchange of the queue's name."""
    with Connection(redis_url) as stock:
        Producer(stock).publish({}, exchange="shoal", routing_key="shoal", declare=[Queue("shoal", "shoal", "shoal")])
    entry: Any = client.rpop("shoal")
    client.hset("unacked", "t", b"[" + entry + b',"shoal","shoal"]')
    client.zadd("unacked_index", {"t": 1.0})
    assert _leases(redis_url).sweep() == 1
    assert client.llen("shoal") == 1


def test_stock_kombu_takes_over_from_a_dead_worker(
    taker: Taker, gateway: Gateway, redis_url: str, client: "redis.Redis"
) -> None:
    sent = gateway.send(MODEL)
    taker.pop()
    got: list[Any] = []
    with Connection(redis_url, transport_options={"visibility_timeout": 0}) as stock:
        channel: Any = stock.default_channel
        channel.qos.restore_visible(num=10, interval=1)
        with Consumer(channel, [Queue(QUEUE)], on_message=got.append, accept=["msgpack"]):
            stock.drain_events(timeout=2)
            got[0].ack()
    assert got[0].headers["id"] == sent
    assert (client.hlen("unacked"), client.llen(QUEUE)) == (0, 0)
