"""A call whose deadline passes: on the device it goes on and its result is kept, in a queue it is dropped."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from catalog import keys
from catalog.keys import KeyRecord, KeySnapshot, NewKey
from catalog.snapshot import Snapshot
from inference.gateway import Gateway, Limits
from inference.lean import LeanHandler
from protocol import names
from tests.gateway.conftest import Held, until
from tests.service.harness import Fleet, Services, Worker, fake_model
from tests.service.harness import Gateway as StandIn
from workers.families.fake import vector

MODEL = fake_model("fake/late", s_per_cost=0.1, max_items=1)
OURS, THEIRS = keys.generate(), keys.generate()
TIMEOUT_S = 2.0
SLOW = "word " * 35  # three and a half seconds


@pytest.fixture
def worker(fleet: Fleet, gateway: StandIn) -> Worker:
    gateway.serve(MODEL)
    worker = fleet.start(SHOAL_VISIBILITY_S=2)
    gateway.collect([gateway.send(MODEL, "warm")])
    return worker


@pytest.fixture
async def client(worker: Worker, services: Services, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    records = [KeyRecord(key.prefix, key.digest, key.prefix, "interactive") for key in (OURS, THEIRS)]
    app = LeanHandler(
        lambda: Gateway(
            broker_url=services.broker_url,
            redis_url=services.redis_url,
            data_dir=tmp_path,
            catalog=Held(Snapshot(1, (MODEL,))),
            keys=Held(KeySnapshot(records)),
            limits=Limits(request_timeout_s=TIMEOUT_S),
            record_usage=lambda amounts: None,
            require_keys=True,
        )
    )
    transport = httpx.ASGITransport(app=app)
    async with app.running() as real, httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        await until(lambda: real.mailbox.connected and real.publisher.connected)
        yield client


def by(key: NewKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text}"}


async def call(client: httpx.AsyncClient, text: str) -> httpx.Response:
    body = {"items": [{"id": "a", "text": text}]}
    return await client.post(f"/v1/encode/{MODEL.spec.model}", json=body, headers=by(OURS))


async def look(client: httpx.AsyncClient, where: str, key: NewKey = OURS, wait: float = 10) -> dict[str, Any]:
    body: dict[str, Any] = (await client.get(where, params={"wait": wait}, headers=by(key))).json()
    return body


async def test_a_call_late_on_the_device_is_answered_by_its_task(client: httpx.AsyncClient) -> None:
    late = await call(client, SLOW)
    error = late.json()["error"]
    assert (late.status_code, error["code"]) == (504, "GATEWAY_TIMEOUT")
    assert error["task_id"] == late.headers["X-SIE-Request-ID"]
    assert late.headers["X-Should-Retry"] == "false"
    where = late.headers["Location"]
    assert where == f"/v1/tasks/{error['task_id']}"
    assert (await look(client, where, wait=0))["state"] == "running"
    found = await look(client, where)
    assert found["state"] == "succeeded"
    assert found["result"]["items"][0]["id"] == "a"
    assert np.allclose(found["result"]["items"][0]["dense"]["values"], vector(SLOW, 8), atol=1e-6)
    assert (await look(client, where, THEIRS))["error"]["code"] == "TASK_NOT_FOUND"


async def test_a_call_late_in_the_queue_never_runs(client: httpx.AsyncClient, worker: Worker, gateway: StandIn) -> None:
    first = asyncio.create_task(call(client, SLOW))
    await asyncio.sleep(0.5)
    second = await call(client, "behind")
    assert (second.status_code, second.json()["error"]["code"]) == (504, "GATEWAY_TIMEOUT")
    assert "task_id" not in second.json()["error"]
    assert second.headers["Retry-After"] == "1"
    assert (await look(client, f"/v1/tasks/{second.headers['X-SIE-Request-ID']}"))["error"]["code"] == "TASK_NOT_FOUND"
    assert (await look(client, (await first).headers["Location"]))["state"] == "succeeded"
    await asyncio.sleep(1.5)  # a beat
    assert gateway.items_run(worker) == 2  # the first that warmed the model up


async def test_a_late_call_can_be_cancelled(client: httpx.AsyncClient) -> None:
    where = (await call(client, SLOW)).headers["Location"]
    assert (await client.delete(where, headers=by(THEIRS))).status_code == 404
    assert (await client.delete(where, headers=by(OURS))).status_code == 200
    await asyncio.sleep(2.0)  # until the forward has ended
    assert (await look(client, where))["state"] == "cancelled"


async def test_a_late_call_whose_worker_dies_has_expired(
    client: httpx.AsyncClient, worker: Worker, fleet: Fleet, gateway: StandIn
) -> None:
    """It comes to another worker, which drops it as late and says so under its id."""
    where = (await call(client, SLOW)).headers["Location"]
    worker.kill()
    await asyncio.to_thread(fleet.start, SHOAL_VISIBILITY_S=2)
    assert (await look(client, where, wait=20))["state"] == "expired"


async def test_calls_in_time_leave_nothing_behind(client: httpx.AsyncClient, gateway: StandIn) -> None:
    answered = await call(client, "quick")
    assert answered.status_code == 200
    request_id = answered.headers["X-SIE-Request-ID"]
    assert not gateway.redis.exists(names.task(request_id), names.task_result(request_id))
