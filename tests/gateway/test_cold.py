"""How long a caller waits for a model that nobody serves or has loaded."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from inference.cold import Patience, next_look, reason_to_stop
from inference.fleet import Fleet, view
from protocol.errors import GatewayTimeout, ModelLoading, Provisioning
from tests.gateway.conftest import FAKE, Setup, limits, until
from tests.gateway.double import WorkerDouble, silent

PATH = "/v1/encode/acme/fake"
BODY: dict[str, Any] = {"items": ["a"]}
PATIENCE = Patience(provision=5, cold=30, total=120)


def beat(state: str, pool: str = "default", **changes: Any) -> dict[str, Any]:
    model = {"digest": FAKE.digest, "state": state, "progress": 0.4}
    return {"id": "w", "pool": pool, "models": [model], **changes}


def fleet(*beats: dict[str, Any]) -> Fleet:
    return view(beats, now=100.0)


@pytest.mark.parametrize(
    ("beats", "waited", "expected"),
    [
        ((), 4.9, None),
        ((), 5.0, Provisioning),
        ((beat("loaded", pool="other"),), 5.0, Provisioning),
        ((beat("loaded", draining=True),), 5.0, Provisioning),
        ((beat("absent"),), 29.9, None),
        ((beat("absent"),), 30.0, ModelLoading),
        ((beat("loading"),), 30.0, ModelLoading),
        ((beat("fetching"),), 30.0, ModelLoading),
        ((beat("loading"), beat("loaded")), 30.0, None),
        ((beat("loaded"),), 119.0, None),
        ((beat("loaded"),), 120.0, GatewayTimeout),
    ],
)
def test_wait_ends_for_a_reason(beats: tuple[dict[str, Any], ...], waited: float, expected: type | None) -> None:
    error = reason_to_stop(FAKE, fleet(*beats), waited, PATIENCE, now=101.0)
    assert (type(error) if error else None) is expected


def test_stale_view_ends_no_wait() -> None:
    assert reason_to_stop(FAKE, fleet(), 60, PATIENCE, now=200.0) is None


def test_progress_is_told() -> None:
    error = reason_to_stop(FAKE, fleet(beat("loading")), 31, PATIENCE, now=100.0)
    assert error is not None
    assert error.extra == {"state": "loading", "progress": 0.4}
    assert error.retry_after == 0.5


@pytest.mark.parametrize(
    ("waited", "seconds"), [(0.0, 5.0), (28.0, 2.0), (30.0, 5.0), (119.5, 0.5), (120.0, 0.0), (130.0, 0.0)]
)
def test_next_look_is_at_the_next_mark(waited: float, seconds: float) -> None:
    assert next_look(waited, PATIENCE) == seconds


async def test_pool_without_worker_answers_provisioning(client: httpx.AsyncClient) -> None:
    started = time.perf_counter()
    response = await client.post(PATH, json=BODY)
    assert 0.4 < time.perf_counter() - started < 2
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "PROVISIONING"
    assert float(response.headers["retry-after"]) > 0


async def test_call_is_held_while_a_worker_starts(client: httpx.AsyncClient, setup: Setup) -> None:
    call = asyncio.create_task(client.post(PATH, json=BODY))
    await asyncio.sleep(0.2)
    late = WorkerDouble(setup.redis_url, setup.data_dir / "blobs", models=(FAKE,))
    late.start()
    late._seen = "0"  # a real worker looks for demand when it starts
    assert (await call).status_code == 200
    late.stop()


async def test_cold_model_answers_model_loading_and_cancels(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    worker.answer = silent
    worker.states[FAKE.digest]["state"] = "loading"
    worker.beat()
    response = await client.post(PATH, json=BODY)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "MODEL_LOADING"
    assert response.headers["retry-after"] == "0.5"
    await until(lambda: worker.cancelled() == {worker.received[0].request.id})


def test_past_the_deadline_only_a_word_of_the_worker_is_waited_for() -> None:
    patience = Patience(provision=5, cold=30, total=2, word=0.5)
    assert reason_to_stop(FAKE, fleet(), 2.1, patience, now=101.0) is None
    assert next_look(2.1, patience) == pytest.approx(0.4)
    assert isinstance(reason_to_stop(FAKE, fleet(), 2.5, patience, now=101.0), GatewayTimeout)


@limits(request_timeout_s=0.3)
async def test_deadline_answers_504_and_cancels(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = silent
    response = await client.post(PATH, json=BODY)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "GATEWAY_TIMEOUT"
    await until(lambda: worker.cancelled() == {worker.received[0].request.id})
