"""Score and extract, and the media of items, on the native wire."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgpack
import pytest

from catalog.snapshot import Model, Snapshot
from inference.lean import LeanHandler
from protocol.errors import InputTooLong, InvalidInput, ResourceExhausted
from protocol.replies import Reply
from protocol.spec import ModelSpec
from tests.gateway.conftest import RANKER, Held, Setup
from tests.gateway.double import Answer, WorkerDouble

READER = ModelSpec("acme/reader", "fake", ("extract",), inputs=("text", "image", "document", "audio"), load={"n": 4})
SCORE = "/v1/score/acme/ranker"
EXTRACT = "/v1/extract/acme/reader"
PNG = b"\x89PNG\r\n"


@pytest.fixture
def setup(setup: Setup) -> Setup:
    setup.catalog = Held(Snapshot(1, (Model(RANKER), Model(READER))))
    return setup


def results(*maps: Mapping[str, Any]) -> Answer:
    return lambda received: Reply(received.request.id, [dict(one) for one in maps], timing={"forward": 2.0})


async def test_scores_are_ranked_best_first(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = results(
        {"score": 0.5, "tokens": 3}, {"score": 2.5, "tokens": 4}, {"score": 0.5, "tokens": 1, "truncated": True}
    )
    body = {"query": {"id": "q", "text": "which"}, "items": [{"text": "a"}, {"id": "b", "text": "b"}, "c"]}

    answer = (await client.post(SCORE, json=body)).json()

    assert answer["query_id"] == "q"
    assert answer["scores"] == [
        {"item_id": "b", "rank": 0, "score": 2.5},
        {"item_id": "item-0", "rank": 1, "score": 0.5},
        {"item_id": "item-2", "rank": 2, "score": 0.5, "truncated": True},
    ]
    assert answer["usage"] == {"input_tokens": 8}


async def test_a_worker_is_given_the_query_and_the_options(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = results({"score": 1.0})
    body = {"query": "which", "items": ["a"], "instruction": "find", "options": {"normalize": True}, "other": 1}

    await client.post(SCORE, json=body)

    [received] = worker.received
    assert received.payload.query == {"text": "which"}
    assert received.payload.options == {"instruction": "find", "normalize": True, "overflow": "truncate"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": ["a"]}, "query"),
        ({"query": {}, "items": ["a"]}, "query.text"),
        ({"query": "q"}, "items"),
        ({"query": "q", "items": []}, "items"),
        ({"query": "q", "items": ["a"] * 1001}, "items"),
        ({"query": "q", "items": ["a"], "options": {"normalise": True}}, "options.normalise"),
        ({"query": "q", "items": ["a"], "options": 3}, "options"),
        ({"query": "q", "items": ["a"], "instruction": 3}, "instruction"),
        ({"query": {"images": [{"data": "aGk="}]}, "items": ["a"]}, "query.images"),
    ],
)
async def test_what_is_wrong_with_a_score_is_named(
    client: httpx.AsyncClient, worker: WorkerDouble, body: dict[str, Any], param: str
) -> None:
    response = await client.post(SCORE, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert worker.received == []


async def test_what_was_extracted_has_every_list(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    entity = {"text": "Ada", "label": "person", "score": 0.9, "start": 0, "end": 3}
    worker.answer = results({"entities": [entity], "tokens": 3, "pages": 2})
    body = {"items": [{"text": "Ada wrote"}], "params": {"labels": ["person"], "options": {"threshold": 0.4}}}

    response = await client.post(EXTRACT, json=body)

    empty: dict[str, Any] = {"relations": [], "classifications": [], "objects": [], "data": {}}
    assert response.json()["items"] == [{"id": "item-0", "entities": [entity], **empty}]
    assert response.json()["usage"] == {"input_tokens": 3, "pages": 2}
    assert response.headers["X-SIE-Units-Pages"] == "2"
    assert worker.received[0].payload.options == {"labels": ["person"], "threshold": 0.4}


async def test_an_item_that_failed_alone_leaves_the_others(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    error = InputTooLong("too long", param="items[1]").to_wire()
    worker.answer = results({"entities": []}, {"error": error})

    response = await client.post(EXTRACT, json={"items": ["a", "b"]})

    assert response.status_code == 200
    good, bad = response.json()["items"]
    assert "error" not in good
    assert (bad["error"]["code"], bad["entities"]) == ("INPUT_TOO_LONG", [])


async def test_items_that_all_failed_for_now_are_retried_as_a_call(
    client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    error = ResourceExhausted("no memory").to_wire()
    worker.answer = results({"error": error}, {"error": error})

    response = await client.post(EXTRACT, json={"items": ["a", "b"]})

    assert (response.status_code, response.headers["Retry-After"]) == (503, "2")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"labels": []}, "params.labels"),
        ({"labels": "person"}, "params.labels"),
        ({"labels": ["a", " "]}, "params.labels"),
        ({"labels": ["a"] * 1001}, "params.labels"),
        ({"labels": ["x" * 1025]}, "params.labels"),
        ({"output_schema": []}, "params.output_schema"),
        ({"options": {"threshold": 1.5}}, "params.options.threshold"),
        ({"options": {"threshold": True}}, "params.options.threshold"),
        ({"options": {"pages": [2, 1]}}, "params.options.pages"),
        ({"options": {"overflow": "chop"}}, "params.options.overflow"),
        ({"options": {"is_query": True}}, "params.options.is_query"),
    ],
)
async def test_what_is_wrong_with_an_extract_is_named(
    client: httpx.AsyncClient, worker: WorkerDouble, params: dict[str, Any], param: str
) -> None:
    response = await client.post(EXTRACT, json={"items": ["a"], "params": params})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert worker.received == []


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {"a": 1}


@pytest.mark.parametrize("schema", [nested(200), {"a": [0] * 100_001}], ids=["deep", "wide"])
async def test_a_schema_out_of_bounds_is_refused(client: httpx.AsyncClient, worker: WorkerDouble, schema: Any) -> None:
    response = await client.post(EXTRACT, json={"items": ["a"], "params": {"output_schema": schema}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "params.output_schema")


@pytest.mark.parametrize("data", ["iVBORw0K", "data:image/png;base64,iVBORw0K"], ids=["base64", "data url"])
async def test_media_in_json_arrive_as_bytes(client: httpx.AsyncClient, worker: WorkerDouble, data: str) -> None:
    """S042: base64 and data URLs; uploads are below."""
    worker.answer = results({"data": {}})

    await client.post(EXTRACT, json={"items": [{"images": [{"data": data, "format": "PNG"}]}]})

    assert worker.received[0].payload.items == [{"images": [{"data": PNG, "format": "png"}]}]


async def test_media_in_messagepack_arrive_as_they_are(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    """S042: an upload."""
    worker.answer = results({"data": {}})
    item = {"document": {"data": b"%PDF", "format": None}, "metadata": {"page": 1}}
    content = msgpack.packb({"items": [item]})

    await client.post(EXTRACT, content=content, headers={"Content-Type": "application/msgpack"})

    assert worker.received[0].payload.items == [{"document": {"data": b"%PDF"}}]


async def test_large_media_go_through_the_blob_store(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = results({"data": {}})
    data = bytes(range(256)) * 1024

    await client.post(EXTRACT, json={"items": [{"document": {"data": base64.b64encode(data).decode()}}]})

    assert "blob" in worker.received[0].body[1]
    assert worker.received[0].payload.items == [{"document": {"data": data}}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"images": []}, "items[0].images"),
        ({"images": {"data": "aGk="}}, "items[0].images"),
        ({"images": [{"data": "aGk="}] * 17}, "items[0].images"),
        ({"images": [{"data": "not base64!"}]}, "items[0].images[0].data"),
        ({"images": [{"data": ""}]}, "items[0].images[0].data"),
        ({"images": [{"data": 3}]}, "items[0].images[0].data"),
        ({"images": [{}]}, "items[0].images[0].data"),
        ({"images": [{"data": "aGk=", "format": 3}]}, "items[0].images[0].format"),
        ({"images": ["aGk=", 3]}, "items[0].images[1]"),
        ({"audio": {"data": "aGk=", "rate": 3}}, "items[0].audio"),
        ({"audio": {"data": "aGk=", "sample_rate": 0}}, "items[0].audio.sample_rate"),
        ({"document": {"url": 3}}, "items[0].document.url"),
        ({"images": [{"url": "https://example.org/a.png"}]}, "items[0].images[0].url"),
        ({"video": {"data": "aGk="}}, "items[0].video"),  # this model reads none
    ],
)
async def test_what_is_wrong_with_media_is_named(
    client: httpx.AsyncClient, worker: WorkerDouble, item: dict[str, Any], param: str
) -> None:
    """S041: no bytes, or base64 with a wrong character, among others."""
    response = await client.post(EXTRACT, json={"items": [item]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert worker.received == []


@dataclass
class Shelf:
    """Remote media that are at hand."""

    contents: dict[str, bytes]

    async def fetch(self, url: str, where: str, kind: str) -> bytes:
        if url not in self.contents:
            raise InvalidInput("the URL may not be fetched", param=where)
        return self.contents[url]


def shelve(app: LeanHandler, shelf: Any) -> None:
    assert app.gateway is not None
    app.gateway.media = shelf


async def test_media_by_url_arrive_as_bytes(client: httpx.AsyncClient, worker: WorkerDouble, app: LeanHandler) -> None:
    worker.answer = results({"data": {}}, {"data": {}})
    shelve(app, Shelf({"https://a.example/x": PNG, "https://a.example/y": b"%PDF"}))
    items = [{"images": [{"url": "https://a.example/x"}]}, {"document": {"url": "https://a.example/y"}}]

    await client.post(EXTRACT, json={"items": items})

    assert worker.received[0].payload.items == [{"images": [{"data": PNG}]}, {"document": {"data": b"%PDF"}}]


async def test_media_by_url_may_not_be_more_than_a_body(
    client: httpx.AsyncClient, worker: WorkerDouble, app: LeanHandler
) -> None:
    shelve(app, Shelf({"https://a.example/x": bytes(5 << 20)}))
    image = {"images": [{"url": "https://a.example/x"}]}

    response = await client.post(EXTRACT, json={"items": [image, image]})

    assert (response.status_code, response.json()["error"]["param"]) == (400, "items[1].images[0].url")
    assert worker.received == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"primitive": "score", "model": "acme/ranker", "query": "q", "items": ["a"]}, {"text": "q"}),
        ({"primitive": "extract", "model": "acme/reader", "items": ["a"], "params": {"labels": ["x"]}}, None),
    ],
)
async def test_every_primitive_may_be_a_task(
    client: httpx.AsyncClient, worker: WorkerDouble, body: dict[str, Any], expected: Any
) -> None:
    worker.answer = results({"score": 1.0} if body["primitive"] == "score" else {"entities": []})

    accepted = (await client.post("/v1/tasks", json=body)).json()
    task = (await client.get(f"/v1/tasks/{accepted['id']}?wait=5")).json()

    assert task["state"] == "succeeded"
    assert worker.received[0].payload.query == expected
    assert set(task["result"]) >= {"model", "usage", "scores" if expected else "items"}
