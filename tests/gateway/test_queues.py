"""What waits, how long a request would wait with it, and who is turned away at the door."""

import asyncio
import time
from typing import Any

import httpx
import pytest
import redis

from inference.lean import LeanHandler
from inference.published import Counts
from inference.queues import QueueReader
from protocol import names
from tests.gateway.conftest import CATALOG, FAKE, NESTED, Setup, limits, until
from tests.gateway.double import WorkerDouble, silent

PATH = "/v1/encode/acme/fake"
LIVE = names.queue("default", "acme/fake", "interactive")
BULK = names.queue("default", "acme/fake", "bulk")
TEXT = "x" * 32  # a cost of ten


@pytest.fixture
def beating(setup: Setup) -> WorkerDouble:
    """A worker's beat, of a worker that takes nothing."""
    return WorkerDouble(setup.redis_url, setup.data_dir / "blobs", models=(FAKE, NESTED))


def beat(double: WorkerDouble, rate: float | None, held: dict[str, Any] | None = None, **state: Any) -> None:
    double.states[FAKE.digest] |= {"rate": rate, **state}
    double.held = held or {}
    double.beat()


async def look(app: LeanHandler) -> None:
    """As happens in the background."""
    assert app.gateway is not None
    await app.gateway.fleet.read()
    await app.gateway.queues.look()


async def rows(client: httpx.AsyncClient) -> dict[tuple[str, str], dict[str, Any]]:
    response = await client.get("/v1/queues")
    assert response.status_code == 200
    return {(row["model"], row["lane"]): row for row in response.json()["data"]}


async def submit(client: httpx.AsyncClient, count: int, lane: str = "interactive", **fields: Any) -> httpx.Response:
    """So many tasks of one item; answers the last response."""
    body = {"primitive": "encode", "model": "acme/fake", "items": [TEXT], "lane": lane, **fields}
    responses = await asyncio.gather(*(client.post("/v1/tasks", json=body) for _ in range(count)))
    return responses[-1]


async def test_every_model_and_lane_has_its_row(app: LeanHandler, client: httpx.AsyncClient) -> None:
    found = await rows(client)
    assert list(found) == [(model, lane) for model in CATALOG.models for lane in names.LANES]
    assert found["acme/fake", "bulk"] == {
        "model": "acme/fake",
        "lane": "bulk",
        "pool": "default",
        "queue": BULK,
        "state": "available",
        "workers": 0,
        "requests": 0,
        "items": 0,
        "cost": 0,
        "at_broker": {"requests": 0, "items": 0, "cost": 0},
        "held": {"requests": 0, "items": 0, "cost": 0},
        "oldest_s": 0.0,
        "predicted_wait_s": None,
    }


async def test_what_waits_is_told_in_requests_items_and_cost(
    app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble
) -> None:
    await submit(client, 3, items=[TEXT, TEXT])
    await submit(client, 2, lane="bulk")
    beat(beating, rate=20.0, held={LIVE: {"requests": 1, "items": 2, "cost": 20}})
    await look(app)
    found = await rows(client)
    live, bulk = found["acme/fake", "interactive"], found["acme/fake", "bulk"]
    assert live["at_broker"] == {"requests": 3, "items": 6, "cost": 60}
    assert live["held"] == {"requests": 1, "items": 2, "cost": 20}
    assert (live["requests"], live["items"], live["cost"]) == (4, 8, 80)
    assert (live["workers"], live["state"]) == (1, "loaded")
    assert (live["predicted_wait_s"], bulk["predicted_wait_s"]) == (4.0, 5.0)


async def test_the_oldest_age_is_that_of_the_next_message(app: LeanHandler, client: httpx.AsyncClient) -> None:
    await submit(client, 1)
    await asyncio.sleep(0.3)
    await submit(client, 1)
    await look(app)
    assert 0.3 <= (await rows(client))["acme/fake", "interactive"]["oldest_s"] < 2.0


async def test_what_a_worker_holds_has_an_age_too(
    app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble
) -> None:
    held = {LIVE: {"requests": 1, "items": 1, "cost": 10}}
    beat(beating, None, held, oldest={"interactive": time.time() - 7})
    await look(app)
    assert (await rows(client))["acme/fake", "interactive"]["oldest_s"] == pytest.approx(7, abs=1)


async def test_another_gateways_messages_are_seen(setup: Setup, app: LeanHandler, client: httpx.AsyncClient) -> None:
    await submit(client, 5)
    await look(app)
    assert app.gateway is not None
    other = QueueReader(app.gateway.redis, setup.redis_url, lambda: CATALOG, lambda: app.gateway.fleet.current)  # type: ignore[union-attr]
    await other.look()
    await other.close()
    assert other.current.waiting[LIVE].counts == Counts(5, 5, 50)


async def test_a_call_that_would_be_late_is_refused_at_once(
    app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble
) -> None:
    beat(beating, rate=10.0, held={LIVE: {"requests": 9, "items": 9, "cost": 90}})
    await look(app)
    started = time.monotonic()
    response = await client.post(PATH, json={"items": [TEXT]})
    assert time.monotonic() - started < 0.5
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "RATE_LIMITED"
    # nine seconds of others, one of its own, and five to spend
    assert float(response.headers["retry-after"]) == pytest.approx(5.0, abs=0.11)
    assert "acme/fake" in response.json()["error"]["message"]


async def test_a_task_has_the_time_to_wait(app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble) -> None:
    beat(beating, rate=10.0, held={LIVE: {"requests": 9, "items": 9, "cost": 90}})
    await look(app)
    assert (await submit(client, 1)).status_code == 202
    late = await submit(client, 1, timeout_s=2)
    assert late.status_code == 429


async def test_bulk_in_front_refuses_no_interactive_call(
    app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble
) -> None:
    beat(beating, rate=10.0, held={BULK: {"requests": 99, "items": 99, "cost": 990}})
    await look(app)
    assert (await submit(client, 1, timeout_s=5)).status_code == 202
    assert (await submit(client, 1, lane="bulk", timeout_s=5)).status_code == 429


@pytest.mark.parametrize(
    ("rate", "cost", "state"),
    [
        pytest.param(None, 1e6, {}, id="pace unknown"),
        pytest.param(1e-3, 0, {}, id="nothing in front"),
        pytest.param(10.0, 0, {"state": "absent", "load_s": 100.0}, id="cold, and nobody asked for it"),
    ],
)
async def test_nobody_is_refused_without_a_reason(
    app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble, rate: float | None, cost: int, state: Any
) -> None:
    beat(beating, rate, {LIVE: {"requests": 1, "items": 1, "cost": cost}}, **state)
    await look(app)
    assert (await submit(client, 1, timeout_s=5)).status_code == 202


async def test_an_old_look_refuses_nobody(app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble) -> None:
    beat(beating, rate=1.0, held={LIVE: {"requests": 9, "items": 9, "cost": 90}})
    await look(app)
    assert app.gateway is not None
    ages = (2.9, 3.1)
    assert [
        app.gateway.queues.forecast("acme/fake", "interactive", app.gateway.queues.current.read_at + age) is None
        for age in ages
    ] == [False, True]


@limits(request_timeout_s=1)
async def test_calls_of_this_process_count_before_the_next_look(
    app: LeanHandler, client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    """Each costs a tenth of a second; a dozen at once is more than fits into one."""
    worker.answer = silent
    beat(worker, rate=100.0)
    await look(app)
    responses = await asyncio.gather(*(client.post(PATH, json={"items": [TEXT]}) for _ in range(12)))
    refused = [response for response in responses if response.status_code == 429]
    assert 1 <= len(refused) <= 3
    assert all(float(response.headers["retry-after"]) <= 0.3 for response in refused)


async def test_calls_that_have_ended_make_room_before_the_next_look(
    app: LeanHandler, client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    beat(worker, rate=100.0)
    await look(app)
    responses = [await client.post(PATH, json={"items": [TEXT] * 40}) for _ in range(5)]
    assert [response.status_code for response in responses] == [200] * 5


async def test_a_refusal_is_demand_and_is_counted(
    setup: Setup, app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble
) -> None:
    beat(beating, rate=10.0, held={LIVE: {"requests": 9, "items": 9, "cost": 90}})
    await look(app)
    await client.post(PATH, json={"items": [TEXT]})
    await look(app)
    with redis.Redis.from_url(setup.redis_url) as state:
        assert state.zscore(names.DEMAND, LIVE) == pytest.approx(time.time(), abs=5)
        assert state.llen(LIVE) == 0
    lines = (await client.get("/metrics")).text.splitlines()
    assert any(line.startswith('shoal_calls_refused_total{lane="interactive",model="acme/fake"}') for line in lines)
    assert any('outcome="RATE_LIMITED"' in line for line in lines)


async def test_gauges_show_what_waits_and_are_silent_about_the_rest(
    app: LeanHandler, client: httpx.AsyncClient, beating: WorkerDouble
) -> None:
    await submit(client, 4, lane="bulk")
    beat(beating, rate=20.0)
    await look(app)
    text = (await client.get("/metrics")).text
    assert 'shoal_queue_cost{lane="bulk",model="acme/fake"} 40.0' in text
    assert 'shoal_queue_requests{lane="bulk",model="acme/fake"} 4.0' in text
    assert 'shoal_predicted_wait_seconds{lane="bulk",model="acme/fake"} 2.0' in text
    assert 'shoal_queue_oldest_seconds{lane="bulk",model="acme/fake"}' in text
    assert 'shoal_queue_cost{lane="interactive"' not in text


async def test_counts_are_kept_while_redis_is_away(setup: Setup, app: LeanHandler, client: httpx.AsyncClient) -> None:
    assert app.gateway is not None
    queues = app.gateway.queues
    with redis.Redis.from_url(setup.redis_url) as state:
        state.set(names.published(LIVE), "in the way")  # so that counting fails
        await submit(client, 2)
        with pytest.raises(redis.RedisError):
            await queues.look()
        state.delete(names.published(LIVE))
    await until(lambda: queues.current.waiting.get(LIVE) is not None)
    assert queues.current.waiting[LIVE].counts == Counts(2, 2, 20)
