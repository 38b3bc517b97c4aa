"""Cancelled stays cancelled, through a real gateway before real workers, on both brokers."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from catalog.keys import KeyRecord, KeySnapshot, generate
from catalog.snapshot import Snapshot
from inference.gateway import Gateway, Limits
from inference.lean import LeanHandler
from protocol import names, tasks
from protocol.replies import Reply
from tests.gateway.conftest import Held, until
from tests.service.faults.system import RedisServer
from tests.service.harness import Fleet, Services, fake_model, wait_until
from tests.service.harness import Gateway as StandIn
from workers import results

SLOW = fake_model("fake/cancelled", forward_s=1.0, max_items=4)
QUICK = fake_model("fake/load", forward_s=0.002, max_items=64)
OURS, THEIRS = generate(), generate()


def record(key: Any) -> KeyRecord:
    return KeyRecord(key.prefix, key.digest, key.prefix, "interactive")


@dataclass
class Front:
    """A gateway in this process, and the headers of two tenants."""

    client: httpx.AsyncClient
    ours: dict[str, str]
    theirs: dict[str, str]

    async def submit(self, model: Any = SLOW, **fields: Any) -> str:
        body = {"primitive": "encode", "model": model.spec.model, "items": [{"text": "a text"}], **fields}
        response = await self.client.post("/v1/tasks", json=body, headers=self.ours)
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    async def cancel(self, task_id: str, headers: dict[str, str] | None = None) -> int:
        response = await self.client.delete(f"/v1/tasks/{task_id}", headers=headers or self.ours)
        return response.status_code

    async def state(self, task_id: str, wait: float = 0) -> str:
        response = await self.client.get(f"/v1/tasks/{task_id}", params={"wait": wait}, headers=self.ours)
        return str(response.json()["state"])


def handler(services: Services, folder: Path) -> LeanHandler:
    return LeanHandler(
        lambda: Gateway(
            broker_url=services.broker_url,
            redis_url=services.redis_url,
            data_dir=folder,
            catalog=Held(Snapshot(1, (SLOW, QUICK))),
            keys=Held(KeySnapshot([record(OURS), record(THEIRS)])),
            limits=Limits(),
            record_usage=lambda amounts: None,
            require_keys=True,
        )
    )


async def front_of(services: Services, folder: Path) -> AsyncIterator[Front]:
    app = handler(services, folder)
    transport = httpx.ASGITransport(app=app)
    async with app.running() as real, httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        await until(lambda: real.mailbox.connected and real.publisher.connected)
        headers = [{"Authorization": f"Bearer {key.text}"} for key in (OURS, THEIRS)]
        yield Front(client, *headers)


@pytest.fixture
async def front(services: Services, gateway: StandIn, tmp_path: Path) -> AsyncIterator[Front]:
    gateway.serve(SLOW, QUICK)
    async for one in front_of(services, tmp_path):
        yield one


async def settled(task: Any) -> Any:
    return await asyncio.to_thread(task)


async def test_a_task_cancelled_before_a_worker_started_never_runs(
    front: Front, fleet: Fleet, gateway: StandIn
) -> None:
    """S082: ten wait for a worker, four are cancelled, one worker comes, and later another."""
    ids = [await front.submit() for _ in range(10)]
    assert [await front.cancel(one) for one in ids[:4]] == [200] * 4
    first = await settled(fleet.start)
    assert [await front.state(one, wait=20) for one in ids[4:]] == ["succeeded"] * 6
    await settled(lambda: wait_until(lambda: gateway.items_run(first) == 6, what="a beat that tells of six"))
    assert await settled(first.stop) == 0
    second = await settled(fleet.start)
    last = await front.submit()
    assert await front.state(last, wait=20) == "succeeded"
    await settled(lambda: wait_until(lambda: gateway.items_run(second) == 1, what="a beat that tells of one"))
    assert [await front.state(one) for one in ids[:4]] == ["cancelled"] * 4


async def test_cancelled_outlives_a_redis_that_is_killed(tmp_path: Path) -> None:
    """S082: Redis restarts between the cancel and the worker's start; a late result changes nothing."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    services = Services(server.url, server.url)
    fleet, stand_in = Fleet(services, tmp_path), StandIn(services)
    stand_in.serve(SLOW, QUICK)
    try:
        async for front in front_of(services, tmp_path):
            cancelled = [await front.submit() for _ in range(3)]
            kept = await front.submit()
            assert [await front.cancel(one) for one in cancelled] == [200] * 3
        server.kill()
        server.start()
        worker = await settled(fleet.start)
        async for front in front_of(services, tmp_path):
            assert await front.state(kept, wait=20) == "succeeded"
            await settled(lambda: wait_until(lambda: stand_in.items_run(worker) == 1, what="a beat that tells of one"))
            assert [await front.state(one) for one in cancelled] == ["cancelled"] * 3
    finally:
        stand_in.close()
        fleet.end()
        server.stop()


async def test_a_result_that_comes_late_does_not_undo_a_cancel(front: Front, gateway: StandIn) -> None:
    """S082: the worker had finished when the cancel came first into the store."""
    task = await front.submit()
    assert await front.cancel(task) == 200
    request = gateway.request(SLOW, id=task)
    late = results.stored_form(request, Reply(task, results=[{"dense": {"dims": 1, "values": [1.0]}}]), None)
    assert gateway.redis.eval(tasks.STORE, 1, names.task_result(task), late, 60) == 0
    assert await front.state(task) == "cancelled"


async def test_cancels_at_every_point_of_a_batch(front: Front, fleet: Fleet, gateway: StandIn) -> None:
    """S083: in the running batch its mates are unaffected; waiting it shrinks the batch; finished it is a 409."""
    worker = await settled(fleet.start)
    warm = await front.submit()
    assert await front.state(warm, wait=20) == "succeeded"
    engine = psutil.Process(worker.process.pid).children()
    running = [await front.submit() for _ in range(4)]
    await until(lambda: started(gateway, running[0]), within=20)
    waiting = [await front.submit() for _ in range(4)]
    beside = [one for one in running if started(gateway, one)]

    assert await front.cancel(beside[0]) == 200
    assert await front.cancel(waiting[0]) == 200

    assert [await front.state(one, wait=20) for one in running] == [
        "cancelled" if one == beside[0] else "succeeded" for one in running
    ]
    assert [await front.state(one, wait=20) for one in waiting] == ["cancelled", *["succeeded"] * 3]
    assert await front.cancel(running[-1] if running[-1] != beside[0] else running[0]) == 409
    assert await front.cancel(warm) == 409
    expected = 1 + len(running) + len(waiting) - 1  # what ran was not stopped, what waited did not run
    await settled(lambda: wait_until(lambda: gateway.items_run(worker) == expected, what="a beat that tells of all"))
    assert psutil.Process(worker.process.pid).children() == engine  # nothing was terminated
    assert worker.process.poll() is None


def started(gateway: StandIn, task_id: str) -> bool:
    return gateway.redis.hget(names.task(task_id), "state") == b"running"


async def test_cancels_that_mean_nothing_harm_nothing(front: Front, fleet: Fleet, gateway: StandIn) -> None:
    """S103: 2,000 cancels of finished, unknown, malformed and other tenants' ids while work goes on."""
    worker = await settled(fleet.start)
    finished = [await front.submit(QUICK) for _ in range(20)]
    assert [await front.state(one, wait=20) for one in finished] == ["succeeded"] * 20
    theirs = await front.submit(SLOW)
    assert await front.state(theirs, wait=20) == "succeeded"
    quiet = await batch_of_work(front)
    before = psutil.Process(worker.process.pid).memory_info().rss
    waiting = [await front.submit(SLOW) for _ in range(6)]
    answers: list[int] = []

    async def storm() -> None:
        for number in range(500):
            answers.append(await front.cancel(finished[number % 20]))
            answers.append(await front.cancel(str(uuid.uuid4())))
            answers.append(await front.cancel(f"odd-{number}-" + "x" * 300))
            answers.append(await front.cancel(waiting[number % 6], front.theirs))

    busy, _ = await asyncio.gather(batch_of_work(front), storm())

    assert answers == [409, 404, 404, 404] * 500
    assert [await front.state(one, wait=20) for one in waiting] == ["succeeded"] * 6
    after = psutil.Process(worker.process.pid).memory_info().rss
    assert after - before < 16 << 20
    assert gateway.redis.zcard(names.CANCELLED) == 0
    assert await batch_of_work(front) < 3 * max(quiet, busy)


async def batch_of_work(front: Front) -> float:
    """Seconds that 200 calls take, eight at a time."""
    begun = time.perf_counter()

    async def caller() -> None:
        for _ in range(25):
            assert await call(front) == 200

    await asyncio.gather(*(caller() for _ in range(8)))
    return time.perf_counter() - begun


async def call(front: Front) -> int:
    """Sent again as clients do when a loaded machine could not publish it within a second."""
    path = f"/v1/encode/{QUICK.spec.model}"
    for _ in range(5):
        response = await front.client.post(path, json={"items": ["a text"]}, headers=front.ours)
        if response.status_code != 503:
            break
        await asyncio.sleep(float(response.headers["Retry-After"]))
    return response.status_code
