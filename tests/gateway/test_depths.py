"""How deep queues are, asked of each broker that this machine has."""

import time
import uuid
from dataclasses import dataclass, field

import pytest

from inference.broker import LINK_ERRORS, connect
from inference.depths import Depth, Depths
from inference.depths import connect as connect_depths
from protocol import names
from protocol.messages import Request


@dataclass(frozen=True)
class Outgoing:
    request: Request
    queue: str
    body: bytes = field(default=b"x" * 50_000)


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest, redis_url: str) -> str:
    return redis_url if request.param == "redis" else str(request.getfixturevalue("rabbitmq_url"))


def send(broker_url: str, queue: str, published: list[float]) -> None:
    requests = [
        Request(str(uuid.uuid4()), "encode", "a/b", "d", 1, 1, deadline=at + 60, published=at) for at in published
    ]
    with connect(broker_url) as link:
        link.send([Outgoing(request, queue) for request in requests])


async def read(depths: Depths, *queues: str) -> list[Depth]:
    found = await depths.read(queues)
    return [found[queue] for queue in queues]


async def test_messages_are_counted_and_a_queue_that_is_not_there_is_empty(broker_url: str) -> None:
    there, gone = (names.queue("default", f"a/{uuid.uuid4().hex}", "interactive") for _ in range(2))
    send(broker_url, there, [time.time()] * 3)
    depths = connect_depths(broker_url)
    assert [depth.messages for depth in await read(depths, gone, there)] == [0, 3]
    await depths.close()


async def test_redis_tells_when_the_next_message_was_published(redis_url: str) -> None:
    depths = connect_depths(redis_url)
    send(redis_url, "shoal.default.a__b.interactive", [1800000000.25, 1800000007.5])
    assert await read(depths, "shoal.default.a__b.interactive") == [Depth(2, 1800000000.25)]
    await depths.close()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"])
async def test_a_broker_that_is_away_is_an_error(url: str) -> None:
    depths = connect_depths(url)
    with pytest.raises(LINK_ERRORS):
        await depths.read(["q"])
    await depths.close()
