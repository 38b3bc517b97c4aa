"""API keys at the gateway's door."""

import time
from typing import Any

import httpx
import pytest

from catalog import keys
from catalog.keys import KeyRecord, KeySnapshot
from tests.gateway.conftest import Setup
from tests.gateway.double import WorkerDouble

PATH = "/v1/encode/acme/fake"
BODY: dict[str, Any] = {"items": ["a"]}


def make(**fields: Any) -> tuple[str, KeyRecord]:
    new = keys.generate()
    return new.text, KeyRecord(new.prefix, new.digest, "test", **{"lane": "interactive", **fields})


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
def issued(setup: Setup) -> dict[str, str]:
    """Keys by what they may do; the gateway asks for one."""
    setup.require_keys = True
    made = {
        "all": make(),
        "other model": make(models=frozenset({"acme/nested"})),
        "other primitive": make(primitives=frozenset({"score"})),
        "expired": make(expires=time.time() - 1),
        "bulk": make(lane="bulk"),
        "second": make(),
    }
    setup.keys.current = KeySnapshot(record for _, record in made.values())
    return {name: text for name, (text, _) in made.items()}


async def test_good_key_passes(issued: dict[str, str], client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await client.post(PATH, json=BODY, headers=bearer(issued["all"]))
    assert response.status_code == 200
    assert worker.received[0].request.key == issued["all"].split("-")[2]


@pytest.mark.parametrize("path", [PATH, "/v1/embeddings", "/v1/tasks"])
@pytest.mark.parametrize("presented", [None, "nonsense", "sk-shoal-", "sk-shoal-00000000-wrong", "é"])
async def test_missing_or_wrong_key_is_401(
    issued: dict[str, str], client: httpx.AsyncClient, path: str, presented: str | None
) -> None:
    headers = {} if presented is None else {b"authorization": b"Bearer " + presented.encode("latin-1")}
    response = await client.post(path, json=BODY, headers=headers)
    assert response.status_code == 401
    code = "invalid_api_key" if path == "/v1/embeddings" else "UNAUTHORIZED"
    assert response.json()["error"]["code"] == code


@pytest.mark.parametrize("scheme", ["Basic dTpw", "Bearer", "Token x"])
async def test_other_schemes_are_401(issued: dict[str, str], client: httpx.AsyncClient, scheme: str) -> None:
    assert (await client.get("/v1/models", headers={"Authorization": scheme})).status_code == 401


async def test_expired_key_is_401(issued: dict[str, str], client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json=BODY, headers=bearer(issued["expired"]))
    assert response.status_code == 401


@pytest.mark.parametrize("name", ["other model", "other primitive"])
async def test_key_for_something_else_is_403(
    issued: dict[str, str], client: httpx.AsyncClient, worker: WorkerDouble, name: str
) -> None:
    response = await client.post(PATH, json=BODY, headers=bearer(issued[name]))
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "FORBIDDEN"
    assert worker.received == []


async def test_key_is_checked_before_the_body(issued: dict[str, str], client: httpx.AsyncClient) -> None:
    assert (await client.post(PATH, content=b"not json")).status_code == 401


async def test_key_gives_the_lane_a_call_does_not(
    issued: dict[str, str], client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    await client.post(PATH, json=BODY, headers=bearer(issued["bulk"]))
    await client.post(PATH, json=BODY, headers={**bearer(issued["bulk"]), "X-Shoal-Lane": "interactive"})
    assert [received.request.lane for received in worker.received] == ["bulk", "interactive"]


async def test_task_of_another_key_does_not_exist(
    issued: dict[str, str], client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    created = await client.post(
        "/v1/tasks", json={"primitive": "encode", "model": "acme/fake", **BODY}, headers=bearer(issued["all"])
    )
    address = created.headers["location"]
    assert (await client.get(address, headers=bearer(issued["all"]))).status_code == 200
    assert (await client.get(address, headers=bearer(issued["second"]))).status_code == 404
    assert (await client.delete(address, headers=bearer(issued["second"]))).status_code == 404


async def test_probes_need_no_key(issued: dict[str, str], client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/metrics"):
        assert (await client.get(path)).status_code in (200, 503)


async def test_open_gateway_takes_anonymous_callers(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    assert (await client.post(PATH, json=BODY)).status_code == 200
    assert worker.received[0].request.key is None


async def test_open_gateway_refuses_a_key_of_ours_that_is_wrong(client: httpx.AsyncClient) -> None:
    assert (await client.post(PATH, json=BODY, headers=bearer("sk-shoal-00000000-wrong"))).status_code == 401


async def test_open_gateway_overlooks_a_placeholder(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    """OpenAI's client cannot be told that there is no key."""
    assert (await client.post(PATH, json=BODY, headers=bearer("unused"))).status_code == 200
