"""What callers get wrong: always a 4xx that names the field, nothing queued, and the next call as good as before."""

import time
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from protocol.items import MAX_ITEMS, MAX_TEXT_BYTES
from tests.gateway.double import WorkerDouble

NATIVE = "/v1/encode/acme/fake"
OPENAI = "/v1/embeddings"
TASKS = "/v1/tasks"
JSON = {"Content-Type": "application/json"}
MSGPACK = {"Content-Type": "application/msgpack"}

NOT_JSON = {
    "empty": b"",
    "blank": b"  ",
    "nothing": b"\x00",
    "half": b'{"items": [',
    "latin-1": b'{"items": ["caf\xe9"]}',
    "list": b"[]",
    "null": b"null",
    "string": b'"text"',
    "number": b"3",
    "trailing": b'{"items":["a"]} x',
    "comment": b'{"items":["a"] /* no */}',
    "control character": b'{"items":["a\x00b"]}',
    "nested arrays": b"[" * 15_000 + b"]" * 15_000,
    "nested objects": b'{"a":' * 15_000 + b"1" + b"}" * 15_000,
    "5000 digits": b'{"items":["a"],"n":' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("path", [NATIVE, OPENAI, TASKS])
@pytest.mark.parametrize("content", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_body_that_is_no_json_map_is_400(
    client: httpx.AsyncClient, worker: WorkerDouble, path: str, content: bytes
) -> None:
    """S035, S036: on three routes; `test_cases_input` has all of them."""
    started = time.perf_counter()
    response = await client.post(path, content=content, headers=JSON)
    assert time.perf_counter() - started < 0.5
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert worker.received == []
    assert (await client.post(NATIVE, json={"items": ["healthy afterwards"]})).status_code == 200


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"items":["a"],"params":{"options":{"dimensions":NaN}}}', "params.options.dimensions"),
        (b'{"items":[{"text":"a","metadata":{"x":Infinity}}]}', "items[0].metadata.x"),
        (b'{"items":["a"],"params":{"x":-Infinity}}', "params.x"),
        (b'{"items":["a"],"params":{"x":1e999}}', "params.x"),
        (b'{"items":["ok","half \\ud83d end"]}', "items[1]"),
        (b'{"items":["ok",{"id":"\\udc00"}]}', "items[1].id"),
    ],
)
async def test_values_json_does_not_have_are_named(client: httpx.AsyncClient, content: bytes, param: str) -> None:
    """S030, S035: with the place of the value."""
    response = await client.post(NATIVE, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_lone_surrogate_is_named_on_openais_route(client: httpx.AsyncClient) -> None:
    response = await client.post(OPENAI, content=b'{"model":"acme/fake","input":["ok","half \\ud83d end"]}')
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input[1]")


async def test_byte_order_mark_is_skipped(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    """S035: which JSON allows to ignore."""
    assert (await client.post(NATIVE, content=b'\xef\xbb\xbf{"items":["a"]}')).status_code == 200


async def test_of_a_key_given_twice_the_last_counts(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    """S035: as RFC 8259 says most readers do."""
    await client.post(NATIVE, content=b'{"items":["first"],"items":["last"]}')
    assert worker.received[0].payload.items == [{"text": "last"}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "items"),
        ({"items": None}, "items"),
        ({"items": []}, "items"),
        ({"items": {}}, "items"),
        ({"items": "text"}, "items"),
        ({"items": 3}, "items"),
        ({"items": ["a"] * (MAX_ITEMS + 1)}, "items"),
        ({"items": ["a", None]}, "items[1]"),
        ({"items": ["a", 3]}, "items[1]"),
        ({"items": ["a", []]}, "items[1]"),
        ({"items": ["a", {}]}, "items[1].text"),
        ({"items": [{"text": None}]}, "items[0].text"),
        ({"items": [{"text": 3}]}, "items[0].text"),
        ({"items": [{"text": ["a"]}]}, "items[0].text"),
        ({"items": [{"content": 3}]}, "items[0].content"),
        ({"items": [{"text": "a", "id": 3}]}, "items[0].id"),
        ({"items": [{"text": "a", "id": "x" * 513}]}, "items[0].id"),
        ({"items": ["x" * (MAX_TEXT_BYTES + 1)]}, "items[0]"),
        ({"items": ["é" * (MAX_TEXT_BYTES // 2 + 1)]}, "items[0]"),
        ({"items": [{"images": [{"data": "aGk="}]}]}, "items[0].images"),
        ({"items": [{"text": "a", "audio": {"data": "aGk="}}]}, "items[0].audio"),
        ({"items": [{"token_ids": []}]}, "items[0].token_ids"),
        ({"items": [{"token_ids": "abc"}]}, "items[0].token_ids"),
        ({"items": [{"token_ids": [1, -2]}]}, "items[0].token_ids"),
        ({"items": [{"token_ids": [1, 2.5]}]}, "items[0].token_ids"),
        ({"items": [{"token_ids": [1, True]}]}, "items[0].token_ids"),
        ({"items": [{"token_ids": [2**40]}]}, "items[0].token_ids"),
        ({"items": ["a"], "params": []}, "params"),
        ({"items": ["a"], "params": "int8"}, "params"),
        ({"items": ["a"], "params": {"options": []}}, "params.options"),
        ({"items": ["a"], "params": {"output_dtype": "int4"}}, "params.output_dtype"),
        ({"items": ["a"], "params": {"output_dtype": 3}}, "params.output_dtype"),
        ({"items": ["a"], "params": {"options": {"output_dtype": "int4"}}}, "params.options.output_dtype"),
        ({"items": ["a"], "params": {"output_types": ["sparse"]}}, "params.output_types"),
        ({"items": ["a"], "params": {"output_types": []}}, "params.output_types"),
        ({"items": ["a"], "params": {"output_types": "dense"}}, "params.output_types"),
        ({"items": ["a"], "params": {"output_types": [3]}}, "params.output_types"),
        ({"items": ["a"], "params": {"instruction": 3}}, "params.instruction"),
        ({"items": ["a"], "params": {"options": {"is_query": "yes"}}}, "params.options.is_query"),
        ({"items": ["a"], "params": {"options": {"normalize": 1}}}, "params.options.normalize"),
        ({"items": ["a"], "params": {"options": {"overflow": "explode"}}}, "params.options.overflow"),
        ({"items": ["a"], "params": {"options": {"overflow_policy": 1}}}, "params.options.overflow_policy"),
        ({"items": ["a"], "params": {"options": {"dimensions": 0}}}, "params.options.dimensions"),
        ({"items": ["a"], "params": {"options": {"dimensions": 4}}}, "params.options.dimensions"),
        ({"items": ["a"], "params": {"options": {"profile": "nope"}}}, "params.options.profile"),
        ({"items": ["a"], "params": {"options": {"profile": ""}}}, "params.options.profile"),
        ({"items": ["a"], "params": {"options": {"profile": 3}}}, "params.options.profile"),
        ({"items": ["a"], "params": {"options": {"normalise": True}}}, "params.options.normalise"),
    ],
)
async def test_wrong_field_is_named(
    client: httpx.AsyncClient, worker: WorkerDouble, body: dict[str, Any], param: str
) -> None:
    for response in (
        await client.post(NATIVE, json=body),
        await client.post(NATIVE, content=msgpack.packb(body), headers=MSGPACK),
    ):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert response.json()["error"]["code"] == "INVALID_INPUT"
    assert worker.received == []


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        ([], "input"),
        ({}, "input"),
        (3, "input"),
        ([[]], "input[0]"),
        ([[1], []], "input[1]"),
        ([["a"]], "input[0]"),
        (["a", 1], "input[1]"),
        ([1, "a"], "input[0]"),
        ([True], "input[0]"),
        ([-1], "input"),
        ([None], "input[0]"),
        (["a"] * (MAX_ITEMS + 1), "input"),
        ("x" * (MAX_TEXT_BYTES + 1), "input"),
        (["ok", "x" * (MAX_TEXT_BYTES + 1)], "input[1]"),
    ],
)
async def test_wrong_openai_input_is_named(
    client: httpx.AsyncClient, worker: WorkerDouble, given: Any, param: str
) -> None:
    """S032: the half of embeddings."""
    response = await client.post(OPENAI, json={"model": "acme/fake", "input": given})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert worker.received == []


def marked(**changes: Any) -> dict[bytes, Any]:
    fields = {"nd": True, "type": "<f4", "kind": b"", "shape": [2], "data": b"\0" * 8, **changes}
    return {name.encode(): value for name, value in fields.items()}


NOT_MSGPACK = {
    "empty": (b"", None),
    "reserved byte": (b"\xc1", None),
    "half": (b"\x81\xa5items\x92", None),
    "trailing": (b"\x80\x01", None),
    "list": (b"\x90", None),
    "huge claim": (b"\xdd\xff\xff\xff\xff", None),
    "deep": (b"\x91" * 15_000 + b"\x90", None),
    "unhashable key": (b"\x81\x90\x01", None),
    "not utf-8": (b"\x81\xa5items\x92\xa1a\xa2\xed\xa0", "items[1]"),
    "extension": (msgpack.packb({"items": ["a", msgpack.ExtType(5, b"x")]}), "items[1]"),
    "object array": (
        msgpack.packb({"items": [{"text": "a", "multivector": marked(type="|O")}]}),
        "items[0].multivector",
    ),
    "complex array": (msgpack.packb({"items": [{"m": marked(type="<c8")}]}), "items[0].m"),
    "structured array": (msgpack.packb({"items": [{"m": marked(type=[["a", "<f4"]])}]}), "items[0].m"),
    "pickled kind": (msgpack.packb({"items": [{"m": marked(kind=b"O")}]}), "items[0].m"),
    "wrong size": (msgpack.packb({"items": [{"m": marked(shape=[3])}]}), "items[0].m"),
    "negative shape": (msgpack.packb({"items": [{"m": marked(shape=[-2])}]}), "items[0].m"),
    "nine dimensions": (msgpack.packb({"items": [{"m": marked(shape=[1] * 9)}]}), "items[0].m"),
    "no data": (msgpack.packb({"items": [{"m": marked(data=None)}]}), "items[0].m"),
}


@pytest.mark.parametrize(("content", "param"), NOT_MSGPACK.values(), ids=NOT_MSGPACK.keys())
async def test_unsafe_msgpack_is_400(
    client: httpx.AsyncClient, worker: WorkerDouble, content: bytes, param: str | None
) -> None:
    response = await client.post(NATIVE, content=content, headers=MSGPACK)
    assert response.status_code == 400
    assert response.json()["error"].get("param") == param
    assert worker.received == []
    assert (await client.post(NATIVE, json={"items": ["healthy afterwards"]})).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "primitive"),
        ({"primitive": "generate"}, "primitive"),
        ({"primitive": 3}, "primitive"),
        ({"primitive": "encode"}, "model"),
        ({"primitive": "encode", "model": 3}, "model"),
        ({"primitive": "encode", "model": "acme/fake"}, "items"),
        ({"primitive": "encode", "model": "acme/fake", "items": ["a"], "lane": "express"}, "lane"),
        ({"primitive": "encode", "model": "acme/fake", "items": ["a"], "timeout_s": -1}, "timeout_s"),
        ({"primitive": "encode", "model": "acme/fake", "items": ["a"], "timeout_s": "soon"}, "timeout_s"),
        ({"primitive": "encode", "model": "acme/fake", "items": ["a"], "timeout_s": True}, "timeout_s"),
        ({"primitive": "encode", "model": "acme/fake", "items": ["a"], "timeout_s": 1e9}, "timeout_s"),
        ({"primitive": "encode", "model": "acme/ranker", "items": ["a"]}, "model"),
    ],
)
async def test_wrong_task_field_is_named(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    response = await client.post(TASKS, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


MANY = 1 << 19
PART = 1 << 17  # a list or map that is not too long by itself
BOMBS = {
    "json lists": b'{"items":[' + b"[]," * MANY + b"[]]}",
    "json maps": b'{"items":[' + b"{}," * MANY + b"{}]}",
    "json keys": b'{"items":{' + b",".join(b'"%d":1' % number for number in range(MANY)) + b"}}",
    "msgpack lists": b"\x81\xa5items\x94" + (b"\xdd" + PART.to_bytes(4, "big") + b"\x90" * PART) * 4,
    "msgpack maps": b"\x81\xa5items\x94" + (b"\xdd" + PART.to_bytes(4, "big") + b"\x80" * PART) * 4,
    "msgpack keys": b"\x81\xa5items\x94"
    + (b"\xdf" + PART.to_bytes(4, "big") + b"".join(msgpack.packb(key) + b"\x01" for key in range(PART))) * 4,
}


@pytest.mark.parametrize("name", BOMBS)
async def test_body_of_too_many_parts_is_refused(client: httpx.AsyncClient, worker: WorkerDouble, name: str) -> None:
    """An empty list is one or two bytes on the wire, and seventy in memory."""
    response = await client.post(NATIVE, content=BOMBS[name], headers=JSON if name.startswith("json") else MSGPACK)
    assert response.status_code == 400
    assert "maps, lists and keys" in response.json()["error"]["message"]
    assert (await client.post(NATIVE, json={"items": ["healthy afterwards"]})).status_code == 200


async def test_lists_that_claim_to_be_long_are_refused(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    """Room is made for what a list claims, before its first element is looked at."""
    claims = b"\xdd" + (1 << 20).to_bytes(4, "big")
    body = b"\x81\xa5items" + claims * 500 + b"\xc0" * (1 << 20)
    response = await client.post(NATIVE, content=body, headers=MSGPACK)
    assert response.status_code == 400


async def test_brackets_in_texts_do_not_count(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    text = 'print({"a": [1, "\\"]})' * (MAX_TEXT_BYTES // 40)
    response = await client.post(NATIVE, json={"items": [text] * 4})
    assert response.status_code == 200
    assert worker.received[0].payload.items == [{"text": text}] * 4


@pytest.mark.parametrize("params", [{"n" * 5000: 1}, {"options": {"n" * 5000: 1}}, {"options": {"a\nb": 1}}])
async def test_long_name_of_an_option_is_not_repeated(client: httpx.AsyncClient, params: dict[str, Any]) -> None:
    response = await client.post(NATIVE, json={"items": ["a"], "params": params})
    assert response.status_code == 400
    assert len(response.content) < 500
    assert response.json()["error"]["param"].endswith(".…")


async def test_long_text_is_no_mistake(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    """S037: 70,000 characters."""
    assert (await client.post(NATIVE, json={"items": ["x" * 70_000]})).status_code == 200


async def test_errors_never_repeat_a_text(client: httpx.AsyncClient) -> None:
    secret = "the patient's name is " + "X" * 60
    response = await client.post(NATIVE, json={"items": secret, "params": {"output_dtype": secret}})
    assert secret not in response.text


def test_arrays_of_plain_numbers_pass() -> None:
    from inference.bodies import read_map

    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    body = {"m": marked(type=values.dtype.str, shape=[2, 3], data=values.tobytes())}
    assert b"nd" in read_map(msgpack.packb(body), "application/msgpack")["m"]
