"""Section C of the cases on every route that takes a body: what is no text, no number, too deep or too much."""

import asyncio
import json
import re
import time
import tracemalloc
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from catalog.snapshot import Model, Snapshot
from inference.lean import LeanHandler
from protocol.replies import Reply
from protocol.spec import ModelSpec
from tests.gateway.conftest import FAKE, RANKER, Held, Setup, limits
from tests.gateway.double import Received, WorkerDouble, encode
from tests.gateway.test_bad_input import NOT_JSON
from tests.gateway.test_lean import Connection

READER = ModelSpec("acme/reader", "fake", ("extract",), inputs=("text", "image"), load={"n": 4})
JSON = {"Content-Type": "application/json"}
HALF = "\ud83d"  # written as an escape, since UTF-8 has no bytes for it
MIB = 1 << 20

# Of every route a good body, and where in it a caller's own texts stand
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/encode/acme/fake": {"items": ["ok", {"id": "b", "text": "fine"}]},
    "/v1/score/acme/ranker": {"query": "which", "items": ["ok", {"id": "b", "text": "fine"}]},
    "/v1/extract/acme/reader": {"items": ["ok", {"id": "b", "text": "fine"}], "params": {"labels": ["a", "b"]}},
    "/v1/embeddings": {"model": "acme/fake", "input": ["ok", "fine"]},
    "/v1/rerank": {"model": "acme/ranker", "query": "which", "documents": ["ok", {"text": "fine"}]},
    "/v2/rerank": {"model": "acme/ranker", "query": "which", "documents": ["ok", {"text": "fine"}]},
    "/rerank": {"query": "which", "texts": ["ok", "fine"]},
    "/embed": {"inputs": ["ok", "fine"], "model": "acme/fake"},
    "/v1/tasks": {"primitive": "encode", "model": "acme/fake", "items": ["ok", {"id": "b", "text": "fine"}]},
}
ITEMS = ("items[1].text", "items[1].id", "items[1].metadata.source")
PLACES: Mapping[str, tuple[str, ...]] = {
    "/v1/encode/acme/fake": (*ITEMS, "params.instruction", "params.options.prompt"),
    "/v1/score/acme/ranker": (*ITEMS, "query", "instruction"),
    "/v1/extract/acme/reader": (*ITEMS, "params.labels[1]", "params.options.task", "params.output_schema.title"),
    "/v1/embeddings": ("input[1]", "model", "user"),
    "/v1/rerank": ("query", "documents[0]", "documents[1].text", "instruction"),
    "/v2/rerank": ("query", "documents[0]", "documents[1].text", "model"),
    "/rerank": ("query", "texts[1]", "model"),
    "/embed": ("inputs[1]", "prompt_name"),
    "/v1/tasks": (*ITEMS, "model", "lane"),
}
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "/v1/encode/acme/fake": ("params.options.dimensions", "items[1].metadata.x"),
    "/v1/score/acme/ranker": ("options.normalize", "items[1].metadata.x"),
    "/v1/extract/acme/reader": ("params.options.threshold", "params.output_schema.x", "items[1].metadata.x"),
    "/v1/embeddings": ("dimensions", "temperature", "top_p", "metadata.x"),
    "/v1/rerank": ("top_n", "temperature"),
    "/v2/rerank": ("top_n", "options.x"),
    "/rerank": ("truncate", "metadata.x"),
    "/embed": ("dimensions", "metadata.x"),
    "/v1/tasks": ("timeout_s", "params.options.dimensions", "items[1].metadata.x"),
}
NOT_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000)


@pytest.fixture
def setup(setup: Setup) -> Setup:
    setup.catalog = Held(Snapshot(1, (Model(FAKE), Model(RANKER), Model(READER))))
    return setup


@pytest.fixture
def worker(worker: WorkerDouble) -> WorkerDouble:
    worker.answer = answer
    return worker


def answer(received: Received) -> Reply:
    """Of every primitive."""
    if received.request.primitive == "encode":
        return encode(received)
    result: dict[str, Any] = {"score": 0.5} if received.request.primitive == "score" else {"entities": []}
    return Reply(received.request.id, [{**result, "tokens": 1} for _ in received.payload.items])


def put(body: Any, place: str, value: Any) -> Any:
    """A copy of `body` with `value` at `place`, written as errors name places."""
    made = inner = json.loads(json.dumps(body))
    *way, last = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", place)]
    for step in way:
        inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
    inner[last] = value
    return made


def named(response: httpx.Response) -> tuple[int, str | None]:
    """Status and the field that is said to be wrong, in each dialect's place for it."""
    body = response.json()
    return response.status_code, (body if isinstance(body["error"], str) else body["error"]).get("param")


async def send(client: httpx.AsyncClient, path: str, content: bytes) -> httpx.Response:
    return await client.post(path, content=content, headers=JSON)


@pytest.mark.parametrize("path", BODIES)
async def test_half_a_surrogate_pair_is_named_wherever_it_stands(
    client: httpx.AsyncClient, worker: WorkerDouble, path: str
) -> None:
    """S030: in texts, queries, labels, ids, metadata and options; the worker hears nothing of it."""
    contents = {place: json.dumps(put(BODIES[path], place, f"half {HALF} end")).encode() for place in PLACES[path]}

    found = {place: named(await send(client, path, content)) for place, content in contents.items()}

    assert found == {place: (400, place) for place in PLACES[path]}
    assert worker.received == []
    assert (await client.post(path, json=BODIES[path])).status_code in (200, 202)


@pytest.mark.parametrize("path", BODIES)
async def test_numbers_that_json_does_not_have_are_named(
    client: httpx.AsyncClient, worker: WorkerDouble, path: str
) -> None:
    """S035."""
    cases = [(place, number) for place in NUMBERS[path] for number in NOT_NUMBERS]
    contents = [
        json.dumps(put(BODIES[path], place, "the number")).replace('"the number"', number).encode()
        for place, number in cases
    ]

    found = [named(await send(client, path, content)) for content in contents]

    assert found == [(400, place) for place, _ in cases]
    assert worker.received == []


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_that_is_no_map_of_json_is_400_on_every_route(
    client: httpx.AsyncClient, worker: WorkerDouble, path: str
) -> None:
    """S035, S036: Latin-1, empty, lists, null, strings, fifteen thousand levels."""
    await send(client, path, b"{}")  # whatever is made once is made by now
    seconds = {}
    statuses = {}
    for name, content in NOT_JSON.items():
        started = time.thread_time()  # of this thread, which runs the gateway: other processes do not count
        response = await send(client, path, content)
        seconds[name], statuses[name] = time.thread_time() - started, response.status_code
        assert "NaN" not in response.text and "Infinity" not in response.text

    assert statuses == dict.fromkeys(NOT_JSON, 400)
    assert max(seconds.values()) < 0.1
    assert worker.received == []
    assert (await client.post(path, json=BODIES[path])).status_code in (200, 202)


DEEP = {"lists": b"[" * 15_000 + b"]" * 15_000, "maps": b'{"a":' * 15_000 + b"1" + b"}" * 15_000}
ALMOST = {"lists": b"[" * 900 + b"]" * 900, "maps": b'{"a":' * 900 + b"1" + b"}" * 900}


@pytest.mark.parametrize("levels", [DEEP, ALMOST], ids=["15000", "900"])
@pytest.mark.parametrize("place", ["items[1].metadata", "params.output_schema", "params.labels", "params.options.task"])
async def test_a_value_that_is_too_deep_is_never_the_servers_fault(
    client: httpx.AsyncClient, worker: WorkerDouble, place: str, levels: Mapping[str, bytes]
) -> None:
    """S036: 900 levels are JSON that is read, and metadata are not looked into; elsewhere they are refused."""
    path = "/v1/extract/acme/reader"
    written = json.dumps(put(BODIES[path], place, "deep")).encode()

    found = [(await send(client, path, written.replace(b'"deep"', deep))).status_code for deep in levels.values()]

    expected = 200 if place == "items[1].metadata" and levels is ALMOST else 400
    assert found == [expected] * 2


@pytest.mark.parametrize("path", ["/v1/encode/acme/fake", "/v1/embeddings", "/embed", "/v1/tasks"])
@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b"])
async def test_a_blank_text_is_encoded(client: httpx.AsyncClient, worker: WorkerDouble, path: str, text: str) -> None:
    """S031, S032: gateways pass it on, and models give it the vector of their special tokens."""
    place = {"/v1/embeddings": "input[1]", "/embed": "inputs[1]"}.get(path, "items[1].text")
    response = await client.post(path, json=put(BODIES[path], place, text))
    assert response.status_code in (200, 202)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
async def test_a_blank_query_is_refused_where_documents_are_ranked(
    client: httpx.AsyncClient, worker: WorkerDouble, path: str, query: str
) -> None:
    """S031."""
    response = await client.post(path, json={**BODIES[path], "query": query})
    assert named(response) == (400, "query")


@pytest.mark.parametrize(
    ("given", "status"),
    [([], 400), ([[]], 400), (None, 400), ({}, 400), ("", 200), ([""], 200), ([" "], 200)],
)
async def test_an_empty_input_is_refused_or_answered_and_the_next_call_is_as_good(
    client: httpx.AsyncClient, worker: WorkerDouble, given: Any, status: int
) -> None:
    """S032, the half of embeddings."""
    answer = await client.post("/v1/embeddings", json={"model": "acme/fake", "input": given})
    assert answer.status_code == status
    assert (await client.post("/v1/embeddings", json={"model": "acme/fake", "input": "fine"})).status_code == 200


@pytest.mark.parametrize("path", BODIES)
@limits(max_body_bytes=8 * MIB)
async def test_a_text_of_70_000_characters_is_no_mistake(
    client: httpx.AsyncClient, worker: WorkerDouble, path: str
) -> None:
    """S037: no limit but the documented ones, of bytes."""
    written = json.dumps(BODIES[path]).replace("fine", "x" * 70_000).encode()
    assert (await send(client, path, written)).status_code in (200, 202)


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/embed"])
@limits(max_body_bytes=34 * MIB)
async def test_20_mb_are_refused_before_they_are_parsed(app: LeanHandler, path: str, is_declared: bool) -> None:
    """S037: a body, or one string in it, declared or in chunks; less memory than twice the body."""
    size = 20_000_000
    piece = b"x" * (64 << 10)
    connection = Connection(path, {"content-length": str(size)} if is_declared else {"transfer-encoding": "chunked"})
    tracemalloc.start()
    task = asyncio.create_task(app(connection.scope, connection.receive, connection.send))
    connection.body(b'{"model":"acme/fake","input":"', more=True)
    for _ in range(size // len(piece)):
        connection.body(bytes(bytearray(piece)), more=True)
        await asyncio.sleep(0)
    connection.body(b'"}')
    await asyncio.wait_for(task, 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert connection.status == 413
    assert str(16 * MIB).encode() in connection.sent[1]["body"]
    assert peak < 2 * size


@limits(max_body_bytes=34 * MIB)
async def test_20_mb_in_one_text_name_the_limit_of_a_text_where_bodies_may_be_larger(
    client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    """S037: native routes carry media, so it is the text that is refused there, as 400: its limit is 2 MiB."""
    response = await client.post("/v1/encode/acme/fake", json={"items": ["ok", "x" * 20_000_000]})
    assert named(response) == (400, "items[1]")
    assert str(2 * MIB) in response.json()["error"]["message"]
    assert worker.received == []


async def test_a_label_of_an_unknown_type_is_its_callers_error_alone(
    client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    """S034: of eight calls at once two are wrong, each in its own way; what is wrong with images the worker finds."""
    path = "/v1/extract/acme/reader"
    bodies = [{"items": [f"secret number {place}"], "params": {"labels": ["a"]}} for place in range(8)]
    bodies[3]["params"] = {"labels": [3]}
    bodies[5]["items"] = [{"images": [{"data": "no base64!"}]}]  # type: ignore[list-item]  # wrong on purpose

    responses = await asyncio.gather(*(client.post(path, json=body) for body in bodies))

    assert [response.status_code for response in responses] == [200] * 3 + [400, 200, 400, 200, 200]
    assert (named(responses[3])[1], named(responses[5])[1]) == ("params.labels", "items[0].images[0].data")
    assert "secret" not in responses[3].text + responses[5].text
