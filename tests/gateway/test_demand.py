"""What publishers say in Redis, read back as workers and gateways read it."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from inference.cancels import send_cancels
from protocol import demand, names


@pytest.fixture
def state(redis_url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def test_what_was_published_adds_up(state: "redis.Redis") -> None:
    for _ in range(2):
        with state.pipeline(transaction=False) as pipe:
            demand.want(pipe, ["q1", "q2"])
            demand.count(pipe, "q1", 1, 3, 40)
            pipe.execute()
    assert state.hmget(names.published("q1"), list(demand.COUNTED)) == [b"2", b"6", b"80"]
    assert 0 < state.ttl(names.published("q1")) <= names.COUNTS_KEPT_S
    assert set(state.zrange(names.DEMAND, 0, -1)) == {b"q1", b"q2"}


async def test_a_cancel_is_not_pushed_out_by_publishers(state: "redis.Redis", redis_url: str) -> None:
    """A worker that was busy for a moment still finds it; one that comes anew looks at the set."""
    async with Redis.from_url(redis_url) as client:
        await send_cancels(client, [("default", "r1")])
    for _ in range(600):
        demand.wake(state, "default", ["q1"])
    entries: Any = state.xrange(names.wake_stream("default"))
    assert [fields[b"c"] for _, fields in entries if b"c" in fields] == [b"r1"]
