"""Probes, models and metrics: what operators and clients see of the gateway and its fleet."""

import asyncio
import re
import time
from typing import Any

import httpx
import pytest
import redis

from catalog.snapshot import EMPTY
from inference.fleet import view
from protocol import names
from protocol.errors import InferenceError
from tests.gateway.conftest import FAKE, NESTED, RANKER, Setup, limits, until
from tests.gateway.double import WorkerDouble, failing, silent

PATH = "/v1/encode/acme/fake"


async def test_live_says_ok_whatever_is_missing(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/livez"):
        response = await client.get(path)
        assert (response.status_code, response.text) == (200, "ok")


async def test_root_leads_to_the_docs(client: httpx.AsyncClient) -> None:
    response = await client.get("/")
    assert (response.status_code, response.headers["location"]) == (302, "/docs")


async def test_ready_says_what_is_missing(client: httpx.AsyncClient, setup: Setup) -> None:
    setup.catalog.current = EMPTY
    response = await client.get("/readyz")
    assert response.status_code == 503
    assert [reason["code"] for reason in response.json()["reasons"]] == ["no_workers", "no_models"]


async def test_ready_follows_the_workers(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    """S095: within the five seconds that a beat is good for."""
    assert (await client.get("/readyz")).status_code == 200
    worker.vanish()
    await _until_status(client, 503)
    worker.is_beating = True
    await _until_status(client, 200)


@pytest.mark.parametrize(
    "odd", [b"\xff", b"[]", b'{"id":"odd","models":3}', b'{"id":{},"pool":[],"memory":3,"counters":[]}']
)
async def test_a_beat_that_cannot_be_read_hides_no_other(
    worker: WorkerDouble, client: httpx.AsyncClient, redis_url: str, odd: bytes
) -> None:
    """Of a worker of another version, or of somebody who may write to Redis."""
    with redis.Redis.from_url(redis_url) as server:
        for name in (b"odd", b"\xff\xfe"):
            server.set(b"shoal:worker:" + name, odd)
            server.zadd(names.WORKERS, {name: time.time()})
    worker.vanish()
    await _until_status(client, 503)
    worker.is_beating = True
    await _until_status(client, 200)
    for path in ("/health", "/metrics", "/v1/models"):
        assert (await client.get(path)).status_code == 200


@limits(max_pending=2)
async def test_ready_says_when_no_more_calls_may_wait(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    """S095: full means that the next call would be refused; it is alive all the while."""
    worker.answer = silent
    calls = [asyncio.create_task(client.post(PATH, json={"items": ["a"]})) for _ in range(2)]
    await until(lambda: len(worker.received) == 2)
    response = await client.get("/readyz")
    assert [reason["code"] for reason in response.json()["reasons"]] == ["calls_full"]
    assert (await client.get("/livez")).status_code == 200
    for call in calls:
        call.cancel()
    await _until_status(client, 200)


async def test_ready_is_cheap(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    """S095: a look at memory, which loads no model."""
    started = time.perf_counter()
    for _ in range(20):
        await client.get("/readyz")
    assert (time.perf_counter() - started) / 20 < 0.05


async def test_models_serve_both_kinds_of_clients(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    names = ["acme/fake", "acme/fake:query", "acme/fake:short", "acme/nested", "acme/multi", "acme/ranker"]
    assert [model["name"] for model in body["models"]] == names
    assert [model["id"] for model in body["data"]] == names
    assert body["object"] == "list"
    assert set(body["data"][0]) == {"id", "object", "created", "owned_by"}


@pytest.mark.parametrize("path", ["/v1/models/acme/fake", "/v1/models/acme%2Ffake", "/v1/models/fake-alias"])
async def test_model_is_found_by_each_name(worker: WorkerDouble, client: httpx.AsyncClient, path: str) -> None:
    model = (await client.get(path)).json()
    assert model["id"] == model["name"] == "acme/fake"
    assert model["object"] == "model"
    assert model["dims"] == {"dense": 8}
    assert model["max_sequence_length"] == 512
    assert model["profiles"]["query"] == {"is_default": False}
    assert (model["state"], model["loaded"], model["last_error"]) == ("loaded", True, None)


async def test_variant_has_an_entry_of_its_own(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models/acme/fake:query")).json()["id"] == "acme/fake:query"


async def test_what_a_model_says_of_itself_as_loaded_is_shown(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    """S006: such as the scale of its scores."""
    worker.states[RANKER.digest] = worker.states[FAKE.digest] | {
        "model": RANKER.model,
        "digest": RANKER.digest,
        "facts": {"scores": "logits"},
    }
    await asyncio.sleep(1.7)  # a beat and a look at it
    assert (await client.get("/v1/models/acme/ranker")).json()["facts"] == {"scores": "logits"}
    assert (await client.get("/v1/models/acme/multi")).json()["facts"] == {}


async def test_load_progress_is_shown(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    worker.states[NESTED.digest] |= {"state": "fetching", "progress": 0.25}
    worker.states[FAKE.digest] |= {
        "state": "failed",
        "error": {"code": "MODEL_LOAD_FAILED", "message": "no such file", "permanent": True, "attempts": 2},
    }
    await until(lambda: worker.is_beating)
    await asyncio.sleep(1.7)  # a beat and a look at it
    nested = (await client.get("/v1/models/acme/nested")).json()
    assert (nested["state"], nested["stage"], nested["progress"]) == ("loading", "fetching", 0.25)
    failed = (await client.get("/v1/models/acme/fake")).json()
    assert (failed["state"], failed["loaded"]) == ("failed", False)
    assert failed["last_error"] == {
        "code": "MODEL_LOAD_FAILED",
        "message": "no such file",
        "attempts": 2,
        "permanent": True,
    }


@pytest.mark.parametrize("name", ["acme/fakee", "nope", "a%2Fb", "m" * 10_000, "acme/fake:nope"])
async def test_unknown_model_is_404(client: httpx.AsyncClient, name: str) -> None:
    for response in (
        await client.get(f"/v1/models/{name}"),
        await client.post(f"/v1/encode/{name}", json={"items": ["a"]}),
    ):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "MODEL_NOT_FOUND"
        assert len(response.text) < 600


async def test_health_reads_as_a_gateway_to_the_sdk(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    body = (await client.get("/health")).json()
    assert body["type"] == "gateway"
    assert body["cluster"]["worker_count"] == 1
    assert body["workers"][0]["name"] == "double-1"
    assert body["workers"][0]["memory_total_bytes"] == 1000
    assert set(body["workers"][0]["loaded_models"]) == {"acme/fake", "acme/nested", "acme/multi"}
    assert {model["name"]: model["state"] for model in body["models"]}["acme/ranker"] == "available"


def test_a_model_is_as_far_as_its_best_worker() -> None:
    def beat(name: str, state: str, progress: float = 0.0) -> dict[str, Any]:
        model = {"digest": FAKE.digest, "state": state, "progress": progress}
        return {"id": name, "pool": "default", "models": [model]}

    found = view([beat("a", "failed"), beat("b", "loading", 0.2), beat("c", "loading", 0.7)], 0.0).state(FAKE)
    assert (found.state, found.progress, found.workers) == ("loading", 0.7, ())
    found = view([beat("a", "loading", 0.9), beat("b", "loaded", 1.0)], 0.0).state(FAKE)
    assert (found.state, found.workers) == ("loaded", ("b",))


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^(shoal_\S+(?:{.*})?) (\S+)$", text, re.M)}


async def test_calls_are_counted(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    ok = 'shoal_calls_total{model="acme/fake",outcome="ok",primitive="encode"}'
    failed = 'shoal_calls_total{model="acme/fake",outcome="INFERENCE_ERROR",primitive="encode"}'
    tokens = 'shoal_tokens_total{model="acme/fake",primitive="encode"}'
    before = await scrape(client)
    for _ in range(3):
        await client.post(PATH, json={"items": ["two words"]})
    worker.answer = failing(InferenceError("broken"))
    await client.post(PATH, json={"items": ["two words"]})
    after = await scrape(client)
    assert after[ok] - before.get(ok, 0) == 3
    assert after[failed] - before.get(failed, 0) == 1
    assert after[tokens] - before.get(tokens, 0) == 6
    assert after['shoal_calls_in_flight{primitive="encode"}'] == 0
    assert after['shoal_errors_total{code="INFERENCE_ERROR",route="encode"}'] >= 1


async def test_strangers_add_no_series(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    """S097: names that callers make up are no labels."""
    await client.post("/v1/encode/nobody/0", json={"items": ["a"]})
    await client.get("/v1/nothing/0")
    before = await scrape(client)
    for index in range(1, 100):
        await client.post(f"/v1/encode/nobody/{index}", json={"items": ["a"]}, headers={"User-Agent": f"agent {index}"})
        await client.get(f"/v1/nothing/{index}")
    after = await scrape(client)
    assert len(after) - len(before) < 5
    unknown = 'shoal_calls_total{model="unknown",outcome="MODEL_NOT_FOUND",primitive="encode"}'
    assert after[unknown] - before[unknown] == 99


async def test_workers_are_gauges_from_their_beats(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    found = await scrape(client)
    assert found['shoal_workers{pool="default"}'] == 1
    assert found['shoal_worker_memory_capacity_bytes{worker="double-1"}'] == 1000
    assert found['shoal_worker_model_loaded{model="acme/fake",worker="double-1"}'] == 1
    assert found['shoal_worker_thrashing_models{worker="double-1"}'] == 0


async def test_dead_letters_are_counted(worker: WorkerDouble, client: httpx.AsyncClient, redis_url: str) -> None:
    assert (await scrape(client))["shoal_dead_letters"] == 0
    with redis.Redis.from_url(redis_url) as state:
        state.zadd(names.DEAD, {"one": 1, "two": 2})
    ends = time.monotonic() + 8  # the fleet is read every second
    while (await scrape(client))["shoal_dead_letters"] != 2:
        assert time.monotonic() < ends
        await asyncio.sleep(0.1)


async def _until_status(client: httpx.AsyncClient, status: int) -> None:
    ends = time.monotonic() + 8
    while (await client.get("/readyz")).status_code != status:
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)
