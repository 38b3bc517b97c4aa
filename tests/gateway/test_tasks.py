"""Tasks: accepted with 202, polled, waited for, cancelled; Celery sees the same result."""

import asyncio
import pickle
import time
from typing import Any

import httpx
import numpy as np
import pytest
import redis
from celery import Celery
from celery.exceptions import TaskRevokedError

from inference.lean import LeanHandler
from protocol import names
from protocol.errors import Expired, NonFiniteOutput
from protocol.tasks import MOST_LISTED
from tests.gateway.conftest import until
from tests.gateway.double import DIMS, WorkerDouble, failing, silent
from workers.families.fake import vector

BODY: dict[str, Any] = {"primitive": "encode", "model": "acme/fake", "items": [{"id": "a", "text": "river stones"}]}


async def create(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    response = await client.post("/v1/tasks", json={**BODY, **changes})
    assert response.status_code == 202, response.text
    body: dict[str, Any] = response.json()
    return body


async def get(client: httpx.AsyncClient, task_id: str, **query: Any) -> dict[str, Any]:
    body: dict[str, Any] = (await client.get(f"/v1/tasks/{task_id}", params=query)).json()
    return body


async def test_accepted_task_says_where_it_will_be(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = silent
    response = await client.post("/v1/tasks", json={**BODY, "lane": "bulk", "timeout_s": 30})
    body = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/v1/tasks/{body['id']}"
    assert body["state"] == "queued"
    assert body["lane"] == "bulk"
    assert body["deadline"] - body["created"] == pytest.approx(30)
    assert await get(client, body["id"]) == body


async def test_succeeded_task_has_the_body_a_waiting_call_would_have_had(
    client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    task = await create(client)
    found = await get(client, task["id"], wait=5)
    assert found["state"] == "succeeded"
    assert found["result"]["items"][0]["id"] == "a"
    assert np.allclose(found["result"]["items"][0]["dense"]["values"], vector("river stones", DIMS), atol=1e-7)
    assert found["result"]["usage"] == {"input_tokens": 2}
    request = worker.received[0].request
    assert request.store
    assert request.reply is None


async def test_celery_reads_the_same_result(client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str) -> None:
    task = await create(client)
    app = Celery("plain", broker=redis_url, backend=redis_url)
    result = await asyncio.to_thread(app.AsyncResult(task["id"]).get, timeout=5)
    assert result["model"] == "acme/fake"


@pytest.mark.parametrize(
    ("error", "state"), [(NonFiniteOutput("not finite"), "failed"), (Expired("too late"), "expired")]
)
async def test_failed_task_has_its_error(
    client: httpx.AsyncClient, worker: WorkerDouble, error: Any, state: str
) -> None:
    worker.answer = failing(error)
    task = await create(client)
    found = await get(client, task["id"], wait=5)
    assert found["state"] == state
    assert found["error"] == error.to_wire()


async def test_running_task_says_since_when(client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str) -> None:
    worker.answer = silent
    task = await create(client)
    with redis.Redis.from_url(redis_url) as server:
        server.hset(names.task(task["id"]), mapping={"state": "running", "started": time.time()})
    found = await get(client, task["id"])
    assert found["state"] == "running"
    assert found["started"] == pytest.approx(time.time(), abs=5)


async def test_task_past_its_deadline_is_expired(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = silent
    task = await create(client, timeout_s=0.05)
    await asyncio.sleep(0.1)
    assert (await get(client, task["id"]))["state"] == "expired"


async def test_expired_task_cannot_be_cancelled(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = silent
    task = await create(client, timeout_s=0.05)
    await asyncio.sleep(0.1)
    assert (await client.delete(f"/v1/tasks/{task['id']}")).status_code == 409
    assert (await get(client, task["id"]))["state"] == "expired"


@pytest.mark.parametrize(
    "facts",
    [
        {"deadline": b"\xff"},
        {"deadline": b""},
        {"deadline": b"nan"},
        {"created": b"soon"},
        {"state": b"\xfe"},
        {b"\xfd": b"x"},
    ],
)
async def test_facts_that_are_none_of_ours_break_nothing(
    client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str, facts: dict[Any, Any]
) -> None:
    worker.answer = silent
    task = await create(client)
    with redis.Redis.from_url(redis_url) as server:
        server.hset(names.task(task["id"]), mapping=facts)
    assert (await client.get(f"/v1/tasks/{task['id']}")).status_code == 200
    assert (await client.delete(f"/v1/tasks/{task['id']}")).status_code in (200, 409)


@pytest.mark.parametrize(
    "stored",
    [
        pickle.dumps({"status": "SUCCESS"}),
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"[3]",
        b"{}",
        b'{"status":"SUCCESS"}',
        b'{"status":"FAILURE","shoal_error":"x"}',
        b'{"status":"SUCCESS","result":NaN}',
    ],
)
async def test_result_that_is_none_of_ours_is_a_failure(
    client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str, stored: bytes
) -> None:
    worker.answer = silent
    task = await create(client)
    with redis.Redis.from_url(redis_url) as server:
        server.set(names.task_result(task["id"]), stored)
    found = await get(client, task["id"])
    assert (found["state"], found["error"]["code"]) == ("failed", "INFERENCE_ERROR")
    assert (await client.delete(f"/v1/tasks/{task['id']}")).status_code == 409


async def test_wait_ends_as_soon_as_there_is_a_result(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    def slow(received: Any) -> Any:
        time.sleep(0.3)
        return failing(NonFiniteOutput("x"))(received)

    worker.answer = slow
    task = await create(client)
    started = time.perf_counter()
    assert (await get(client, task["id"], wait=20))["state"] == "failed"
    assert 0.2 < time.perf_counter() - started < 3


async def test_wait_is_bounded(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = silent
    task = await create(client)
    started = time.perf_counter()
    assert (await get(client, task["id"], wait=0.3))["state"] == "queued"
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("wait", ["soon", "-1", "61", "nan", ""])
async def test_wrong_wait_is_400(client: httpx.AsyncClient, wait: str) -> None:
    response = await client.get("/v1/tasks/x", params={"wait": wait})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "wait")


async def test_cancelled_task_is_announced_to_workers_and_celery(
    client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str
) -> None:
    worker.answer = silent
    task = await create(client)
    response = await client.delete(f"/v1/tasks/{task['id']}")
    assert response.status_code == 200
    assert response.json()["state"] == "cancelled"
    assert worker.cancelled() == {task["id"]}
    with redis.Redis.from_url(redis_url) as server:
        entries = server.xrange(names.wake_stream("default"))
        assert {b"c": task["id"].encode()} in [fields for _, fields in entries]
    with pytest.raises(TaskRevokedError):
        Celery("plain", broker=redis_url, backend=redis_url).AsyncResult(task["id"]).get(timeout=5)


async def test_tasks_are_indexed_for_operators(client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str) -> None:
    """The newest, up to a bound."""
    with redis.Redis.from_url(redis_url) as server:
        server.zadd(names.TASKS, {f"old-{number}": number for number in range(MOST_LISTED)})
        task = await create(client)
        assert server.zrevrange(names.TASKS, 0, 0) == [task["id"].encode()]
        assert server.zcard(names.TASKS) == MOST_LISTED
        assert server.zscore(names.TASKS, "old-0") is None


async def test_cancelling_twice_is_no_mistake(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = silent
    task = await create(client)
    first = await client.delete(f"/v1/tasks/{task['id']}")
    second = await client.delete(f"/v1/tasks/{task['id']}")
    assert (first.status_code, second.status_code) == (200, 200)


async def test_finished_task_cannot_be_cancelled(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    task = await create(client)
    await get(client, task["id"], wait=5)
    response = await client.delete(f"/v1/tasks/{task['id']}")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "TASK_FINISHED"
    assert (await get(client, task["id"]))["state"] == "succeeded"
    assert worker.cancelled() == set()


async def test_result_after_a_cancel_changes_nothing(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def held(received: Any) -> Any:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(5)
        return failing(NonFiniteOutput("late"))(received)

    worker.answer = held
    task = await create(client)
    await client.delete(f"/v1/tasks/{task['id']}")
    release.set()
    await until(lambda: worker.received)
    assert (await get(client, task["id"], wait=0.3))["state"] == "cancelled"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_unknown_task_is_404(client: httpx.AsyncClient, method: str) -> None:
    response = await client.request(method, "/v1/tasks/" + "x" * 500)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "TASK_NOT_FOUND"
    assert len(response.json()["error"]["message"]) < 150


async def test_native_route_accepts_on_request(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await client.post(
        "/v1/encode/acme/fake", json={"items": ["a"]}, headers={"Prefer": "respond-async, wait=1"}
    )
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "respond-async"
    assert (await get(client, response.json()["id"], wait=5))["state"] == "succeeded"


async def test_task_that_cannot_be_published_leaves_nothing(
    client: httpx.AsyncClient, app: LeanHandler, redis_url: str
) -> None:
    assert app.gateway is not None
    app.gateway.publisher.connected = False
    response = await client.post("/v1/tasks", json=BODY)
    assert response.status_code == 503
    with redis.Redis.from_url(redis_url) as server:
        assert list(server.scan_iter(names.task("*"))) == []


async def test_waits_leave_no_subscription_behind(
    client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str
) -> None:
    for _ in range(5):
        task = await create(client)
        await get(client, task["id"], wait=5)
    with redis.Redis.from_url(redis_url) as server:
        await until(lambda: server.pubsub_channels("celery-task-meta-*") == [])
