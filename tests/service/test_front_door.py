"""What callers may do about work that waits, through a real gateway before a real worker, on both brokers."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from catalog.keys import KeySnapshot
from catalog.snapshot import Snapshot
from inference.gateway import Gateway, Limits
from inference.lean import LeanHandler
from tests.gateway.conftest import Held, until
from tests.service.harness import Fleet, Services, Worker, fake_model, wait_until
from tests.service.harness import Gateway as StandIn

MODEL = fake_model("fake/front-door", forward_s=0.3, max_items=1)


@pytest.fixture
def worker(fleet: Fleet, gateway: StandIn) -> Worker:
    gateway.serve(MODEL)
    return fleet.start()


@pytest.fixture
async def client(worker: Worker, services: Services, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = LeanHandler(
        lambda: Gateway(
            broker_url=services.broker_url,
            redis_url=services.redis_url,
            data_dir=tmp_path,
            catalog=Held(Snapshot(1, (MODEL,))),
            keys=Held(KeySnapshot()),
            limits=Limits(),
            record_usage=lambda amounts: None,
        )
    )
    transport = httpx.ASGITransport(app=app)
    async with app.running() as real, httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        await until(lambda: real.mailbox.connected and real.publisher.connected)
        yield client


async def submit(client: httpx.AsyncClient, number: int) -> str:
    body = {"primitive": "encode", "model": MODEL.spec.model, "items": [{"text": f"text {number}"}]}
    response = await client.post("/v1/tasks", json=body)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


async def finished(client: httpx.AsyncClient, task_id: str) -> str:
    response = await client.get(f"/v1/tasks/{task_id}", params={"wait": 20})
    return str(response.json()["state"])


async def test_a_task_cancelled_before_its_launch_never_runs(
    client: httpx.AsyncClient, worker: Worker, gateway: StandIn
) -> None:
    ids = [await submit(client, number) for number in range(6)]
    assert (await client.delete(f"/v1/tasks/{ids[-1]}")).status_code == 200
    assert [await finished(client, one) for one in ids] == ["succeeded"] * 5 + ["cancelled"]
    await asyncio.to_thread(wait_until, lambda: gateway.items_run(worker) >= 5, what="a beat that tells of five")
    assert gateway.items_run(worker) == 5


async def test_a_caller_who_leaves_takes_what_has_not_started_along(
    client: httpx.AsyncClient, worker: Worker, gateway: StandIn
) -> None:
    tasks = [await submit(client, number) for number in range(5)]
    leaving = asyncio.create_task(client.post(f"/v1/encode/{MODEL.spec.model}", json={"items": ["late"]}))
    await asyncio.sleep(0.3)
    leaving.cancel()
    assert [await finished(client, one) for one in tasks] == ["succeeded"] * 5
    await asyncio.to_thread(wait_until, lambda: gateway.items_run(worker) >= 5, what="a beat that tells of five")
    assert gateway.items_run(worker) == 5


async def test_queues_tell_what_waits_since_when_and_for_how_long(client: httpx.AsyncClient) -> None:
    for task in [await submit(client, number) for number in range(6)]:  # the pace is learned
        await finished(client, task)
    began = time.monotonic()
    ids = [await submit(client, number) for number in range(20)]
    await asyncio.sleep(2.0)  # a beat, and a look after it
    rows: list[dict[str, Any]] = (await client.get("/v1/queues")).json()["data"]
    waited = time.monotonic() - began
    row = next(row for row in rows if row["lane"] == "interactive")
    assert row["model"] == MODEL.spec.model
    assert 8 <= row["items"] <= 20
    assert row["cost"] == row["items"] * 3  # six characters and what comes with any text
    assert 0.5 <= row["oldest_s"] <= waited + 1.5  # what it is told from may be that old
    assert row["predicted_wait_s"] == pytest.approx(0.3 * row["items"], rel=0.5)
    for one in ids:
        await client.delete(f"/v1/tasks/{one}")
