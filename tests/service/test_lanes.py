"""What the lanes promise with a real worker, and that their waits are foreseen. The same on each broker.

Each test has a model of its own: RabbitMQ keeps what an earlier one left in a bulk queue.
"""

import asyncio
import time
from collections import Counter

import pytest
from redis.asyncio import Redis

from catalog.snapshot import Snapshot
from inference.fleet import FleetReader
from inference.queues import QueueReader
from protocol import names
from tests.service.harness import Fleet, Gateway, Services, fake_model, wait_until


def test_interactive_requests_wait_for_the_running_batch_at_most(fleet: Fleet, gateway: Gateway) -> None:
    """S081: 200 bulk requests are there first, then five interactive ones come."""
    model = fake_model("fake/made-way", forward_s=0.3, max_items=8)
    gateway.serve(model)
    fleet.start()
    bulk = [gateway.send(model, f"bulk {number}", lane="bulk") for number in range(200)]
    gateway.collect(bulk[:8])
    found = gateway.collect([gateway.send(model, f"live {number}") for number in range(5)])
    assert all(reply.timing["queue"] < 450 for reply in found.values())
    assert gateway.redis.llen(gateway.mailbox) < 2


def test_bulk_advances_while_interactive_requests_could_fill_every_batch(fleet: Fleet, gateway: Gateway) -> None:
    model = fake_model("fake/advancing", forward_s=0.1, max_items=16)
    gateway.serve(model)
    worker = fleet.start()
    gateway.collect([gateway.send(model, lane="bulk")])  # its queue is there
    lanes = {gateway.send(model): "live" for _ in range(64)}
    lanes |= {gateway.send(model, lane="bulk"): "bulk" for _ in range(150)}

    def turn() -> list[str]:
        """The lanes of what was answered since the last turn; each live answer brings the next live request."""
        answered = [lanes[reply.id] for reply in gateway.mail()]
        lanes.update({gateway.send(model): "live" for lane in answered if lane == "live"})
        return answered

    wait_until(lambda: turn() is not None and len(gateway.beat(worker).get("queues", {})) == 2, what="both lanes held")
    lanes.update({gateway.send(model): "live" for _ in range(400)})  # so none is missing, however slow this test is
    answered: list[str] = []

    def is_enough() -> bool:
        answered.extend(lanes[reply.id] for reply in gateway.mail())
        return len(answered) >= 400

    wait_until(is_enough, 60, "400 answers")
    done = Counter(answered[:400])
    assert done["bulk"] >= 0.05 * done.total()
    assert done["live"] >= 0.75 * done.total()


@pytest.mark.parametrize("lane", names.LANES)
async def test_the_wait_is_foreseen(fleet: Fleet, gateway: Gateway, services: Services, lane: str) -> None:
    model = fake_model(f"fake/foreseen-{lane}", forward_s=0.1, max_items=4)
    gateway.serve(model)
    worker = fleet.start()
    gateway.collect([gateway.send(model, cost=10) for _ in range(40)])
    wait_until(lambda: gateway.beat(worker)["models"][0]["rate"], what="a rate")
    ids = [gateway.send(model, lane=lane, cost=10) for _ in range(160)]
    queue = gateway.queue(model, lane)
    gateway.redis.hset(names.published(queue), mapping={"messages": 160, "items": 160, "cost": 1600})
    await asyncio.sleep(1.2)  # a beat
    async with Redis.from_url(services.redis_url) as redis:
        seen = FleetReader(redis)
        queues = QueueReader(redis, services.broker_url, lambda: Snapshot(1, (model,)), lambda: seen.current)
        await seen.read()
        await queues.look()
        await queues.close()
    looked = time.monotonic()
    forecast = queues.forecast(model.spec.model, lane, looked)
    assert forecast is not None
    gateway.collect(ids)
    assert forecast.wait_s(forecast.ahead) == pytest.approx(time.monotonic() - looked, rel=0.35)
