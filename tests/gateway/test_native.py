"""The native dialect: the published SIE SDK's wire, and plain JSON for curl."""

from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
import redis

from protocol import names
from protocol.errors import InputTooLong, NonFiniteOutput
from protocol.replies import Reply
from tests.gateway.conftest import limits, until
from tests.gateway.double import DIMS, Received, WorkerDouble, encode, encoded, failing, quantised, silent
from workers.families.fake import vector

PATH = "/v1/encode/acme/fake"
MSGPACK = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}


def array(marked: dict[bytes, Any]) -> "np.ndarray[Any, Any]":
    """An array as the SDK decodes it."""
    assert marked[b"nd"] is True
    assert marked[b"kind"] == b""
    return np.frombuffer(marked[b"data"], dtype=marked[b"type"]).reshape(marked[b"shape"])


async def sdk_post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    response = await client.post(path, content=msgpack.packb(body), headers=MSGPACK)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/msgpack"
    return msgpack.unpackb(response.content)


async def test_plain_json_gets_json(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await client.post(PATH, json={"items": [{"id": "a", "text": "river stones"}, "bare string"]})
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert body["model"] == "acme/fake"
    assert body["items"][0]["id"] == "a"
    assert "id" not in body["items"][1]
    assert body["items"][0]["dense"]["dims"] == DIMS
    assert np.allclose(body["items"][0]["dense"]["values"], vector("river stones", DIMS), atol=1e-7)
    assert np.allclose(body["items"][1]["dense"]["values"], vector("bare string", DIMS), atol=1e-7)
    assert body["usage"] == {"input_tokens": 4}
    assert body["timing"]["queue_ms"] == 1.5
    assert body["timing"]["inference_ms"] == 3.0


async def test_sdk_gets_arrays_in_byte_string_maps(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    body = await sdk_post(client, PATH, {"items": [{"text": "river stones"}]})
    values = array(body["items"][0]["dense"]["values"])
    assert values.dtype == np.dtype("<f4")
    assert np.array_equal(values, vector("river stones", DIMS))


@pytest.mark.parametrize(
    ("accept", "content_type", "wanted"),
    [
        ("*/*", "application/json", "application/json"),
        (None, "application/json", "application/json"),
        ("application/json", "application/msgpack", "application/json"),
        (None, "application/msgpack", "application/msgpack"),
        ("*/*", "application/x-msgpack", "application/msgpack"),
        ("application/x-msgpack", "application/json", "application/msgpack"),
        ("application/msgpack", "application/json", "application/msgpack"),
    ],
)
async def test_msgpack_is_answered_where_it_is_asked_for(
    client: httpx.AsyncClient, worker: WorkerDouble, accept: str | None, content_type: str, wanted: str
) -> None:
    body = {"items": [{"text": "a"}]}
    content = msgpack.packb(body) if "msgpack" in content_type else b'{"items":[{"text":"a"}]}'
    del client.headers["accept"]
    headers = {"Content-Type": content_type, **({"Accept": accept} if accept else {})}
    response = await client.post(PATH, content=content, headers=headers)
    assert response.headers["content-type"] == wanted


async def test_response_headers_say_where_the_time_went(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    headers = (await client.post(PATH, json={"items": ["two words"]})).headers
    assert headers["X-Queue-Time"] == "1.50"
    assert headers["X-Tokenization-Time"] == "0.25"
    assert headers["X-Inference-Time"] == "3.00"
    assert "X-Postprocessing-Time" not in headers  # it took no time
    assert float(headers["X-Total-Time"]) > 0
    assert headers["X-SIE-Units-Input-Tokens"] == "2"
    assert headers["X-SIE-Server-Version"] == "0.10.1"
    assert headers["X-SIE-Worker"] == "double-1"
    assert headers["X-SIE-Request-ID"] == worker.received[0].request.id


async def test_options_reach_the_worker_resolved(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    params = {
        "output_dtype": "int8",
        "instruction": "find facts",
        "output_types": ["dense"],
        "options": {"is_query": True, "normalize": False, "overflow_policy": "error", "output_dtype": "uint8"},
    }
    await client.post(PATH, json={"items": ["a"], "params": params})
    assert worker.received[0].payload.options == {
        "output_types": ["dense"],
        "output_dtype": "int8",  # the outer one counts
        "is_query": True,
        "prompt": None,
        "instruction": "find facts",
        "dimensions": None,
        "normalize": False,
        "overflow": "error",
        "chunk": None,
        "muvera": None,
        "smve": None,
    }


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        (f"{PATH}:query", {}, {"is_query": True, "instruction": None}),
        (PATH, {"profile": "query"}, {"is_query": True, "instruction": None}),
        (f"{PATH}:query", {"profile": "short"}, {"is_query": None, "instruction": "be brief"}),
        (f"{PATH}:query", {"is_query": False}, {"is_query": False, "instruction": None}),
        (f"{PATH}:query", {"is_query": None}, {"is_query": True, "instruction": None}),
        ("/v1/encode/fake-alias", {}, {"is_query": None, "instruction": None}),
    ],
)
async def test_profile_gives_defaults(
    client: httpx.AsyncClient, worker: WorkerDouble, path: str, options: Any, expected: Any
) -> None:
    response = await client.post(path, json={"items": ["a"], "params": {"options": options}})
    assert response.status_code == 200
    received = worker.received[0].payload.options
    assert {name: received[name] for name in expected} == expected


async def test_quantised_values_come_with_scale_and_offset(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = quantised
    body = {"items": [{"text": "a"}], "params": {"output_dtype": "int8"}}
    dense = (await client.post(PATH, json=body)).json()["items"][0]["dense"]
    assert dense == {"dims": 8, "dtype": "int8", "values": [1, -2, 3, 4, 5, 6, 7, 8], "scale": 0.5, "offset": 0.0}
    packed = (await sdk_post(client, PATH, body))["items"][0]["dense"]
    assert array(packed["values"]).dtype == np.int8
    assert packed["scale"] == 0.5


@pytest.mark.parametrize("dtype", ["float16", "uint8", "binary"])
async def test_every_dtype_has_both_forms(client: httpx.AsyncClient, worker: WorkerDouble, dtype: str) -> None:
    values = np.array([1, 2, 3, 4], np.float16 if dtype == "float16" else np.uint8)

    def answer(received: Received) -> Reply:
        dense = {"dims": 4, "dtype": dtype, "values": values}
        return Reply(received.request.id, [{"dense": dense, "tokens": 1}])

    worker.answer = answer
    body = {"items": ["a"], "params": {"output_dtype": dtype}}
    assert (await client.post(PATH, json=body)).json()["items"][0]["dense"]["values"] == [1, 2, 3, 4]
    assert np.array_equal(array((await sdk_post(client, PATH, body))["items"][0]["dense"]["values"]), values)


async def test_sparse_and_multivector_are_rendered(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    sparse = {"dims": 30, "dtype": "float32", "indices": np.array([3, 9], np.int32), "values": np.array([1, 2], "f4")}
    tokens = {"token_dims": 2, "num_tokens": 3, "dtype": "float32", "values": np.ones((3, 2), np.float32)}
    worker.answer = lambda received: Reply(
        received.request.id, [{"sparse": sparse, "multivector": tokens, "tokens": 3}]
    )
    item = (await sdk_post(client, "/v1/encode/acme/multi", {"items": [{"text": "a"}]}))["items"][0]
    assert array(item["sparse"]["indices"]).tolist() == [3, 9]
    assert array(item["multivector"]["values"]).shape == (3, 2)
    assert worker.received[0].payload.options["output_types"] == ["sparse", "multivector"]


async def test_arrays_in_an_item_are_ignored(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    given = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": b"\0" * 8}
    body = await sdk_post(client, PATH, {"items": [{"text": "a", "multivector": given, "metadata": {"k": 1}}]})
    assert len(body["items"]) == 1
    assert worker.received[0].payload.items == [{"text": "a"}]


async def test_many_items_keep_their_order(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    texts = [f"text number {index}" for index in range(300)]
    body = await sdk_post(client, PATH, {"items": [{"text": text} for text in texts]})
    assert all(
        np.array_equal(array(item["dense"]["values"]), vector(text, DIMS))
        for text, item in zip(texts, body["items"], strict=True)
    )


async def test_worker_error_is_the_answer(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = failing(NonFiniteOutput("model 'acme/fake' gave a vector that is not finite", param="items[1]"))
    response = await client.post(PATH, json={"items": ["fine", "zzznan"]})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "NON_FINITE_OUTPUT"
    assert response.headers["X-SIE-Error-Code"] == "NON_FINITE_OUTPUT"
    assert "retry-after" not in response.headers


async def test_one_item_error_fails_the_call_with_its_code(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    error = InputTooLong("items[1] has 600 tokens, the model reads 512", param="items[1].text").to_wire()
    worker.answer = lambda received: Reply(received.request.id, [encoded("a"), {"error": error}])
    response = await client.post(PATH, json={"items": ["a", "b"]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "items[1].text"


async def test_answer_with_items_missing_is_an_error(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = lambda received: Reply(received.request.id, [encoded("a")])
    response = await client.post(PATH, json={"items": ["a", "b"]})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "INFERENCE_ERROR"


async def test_lane_header_chooses_the_queue(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    await client.post(PATH, json={"items": ["a"]}, headers={"X-Shoal-Lane": "bulk"})
    await client.post(PATH, json={"items": ["a"]})
    assert [received.request.lane for received in worker.received] == ["bulk", "interactive"]
    routing = [received.envelope["properties"]["delivery_info"]["routing_key"] for received in worker.received]
    assert routing == ["shoal.default.acme__fake.bulk", "shoal.default.acme__fake.interactive"]


async def test_unknown_lane_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json={"items": ["a"]}, headers={"X-Shoal-Lane": "express"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Shoal-Lane"


async def test_request_header_has_what_scheduling_needs(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    await client.post(f"{PATH}:query", json={"items": ["x" * 400, "y" * 4000, {"token_ids": [1, 2, 3]}]})
    request = worker.received[0].request
    assert request.model == "acme/fake:query"
    assert request.count == 3
    assert request.cost == (100 + 2) + 512 + 5
    assert request.deadline - request.published == pytest.approx(5)
    assert request.reply is not None
    assert not request.store


@pytest.mark.parametrize("size", [70_000, 200_000])
async def test_large_payload_takes_the_blob_store(client: httpx.AsyncClient, worker: WorkerDouble, size: int) -> None:
    text = "w " * (size // 2)
    response = await client.post(PATH, json={"items": [{"id": "big", "text": text}]})
    assert response.status_code == 200
    assert set(worker.received[0].body[1]) == {"model", "blob"}
    assert worker.received[0].payload.items == [{"id": "big", "text": text}]
    assert response.json()["usage"]["input_tokens"] == size // 2


@limits(request_timeout_s=0.5)
async def test_payload_that_nobody_waits_for_is_dropped(
    client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str
) -> None:
    worker.answer = silent
    assert (await client.post(PATH, json={"items": ["w " * 100_000]})).status_code == 504
    with redis.Redis.from_url(redis_url) as server:
        await until(lambda: not server.exists(names.blob(worker.received[0].request.id)))


async def test_large_payloads_wait_while_redis_is_nearly_full(
    client: httpx.AsyncClient, worker: WorkerDouble, redis_url: str
) -> None:
    """What room is left is for replies and small calls."""
    with redis.Redis.from_url(redis_url) as server:
        server.config_set("maxmemory", int(server.info("memory")["used_memory"] * 1.2))
        try:
            large = await client.post(PATH, json={"items": ["w " * 50_000]})
            small = await client.post(PATH, json={"items": ["w"]})
        finally:
            server.config_set("maxmemory", 0)
    assert (large.status_code, large.json()["error"]["code"]) == (503, "QUEUE_FULL")
    assert large.headers["Retry-After"]
    assert small.status_code == 200


@limits(max_body_bytes=16 << 20)
async def test_payload_too_large_for_redis_goes_to_a_file(
    client: httpx.AsyncClient, worker: WorkerDouble, data_dir: Path
) -> None:
    body = msgpack.packb({"items": [{"text": "x" * 2_000_000} for _ in range(5)]})
    response = await client.post(PATH, content=body, headers=MSGPACK)
    assert response.status_code == 200
    assert worker.received[0].body[1]["blob"].startswith("file:")
    assert sum(path.stat().st_size for path in (data_dir / "blobs").iterdir()) > 10_000_000


async def test_late_and_double_replies_are_harmless(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    def twice(received: Received) -> Reply:
        assert received.request.reply is not None
        worker.send(Reply("nobody-waits-for-this", []), received.request.reply)
        worker.send(encode(received), received.request.reply)
        return encode(received)

    worker.answer = twice
    assert (await client.post(PATH, json={"items": ["a"]})).status_code == 200
    assert (await client.post(PATH, json={"items": ["b"]})).status_code == 200
