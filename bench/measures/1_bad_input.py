"""Bad input is refused at the door: 4xx, the field named, and the engine knows nothing of it."""

import contextlib
import http.client
import json
from typing import Any

import msgpack

from bench.figure import Figure
from bench.system import MODEL, Serving, System

NAME = "bad input answered with 4xx that names the field, engine untouched"
BAR = "every case; no forward, no new engine"

ENCODE = f"/v1/encode/{MODEL}"
JSON, MSGPACK = "application/json", "application/msgpack"
ARRAY = {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"\x00" * 8}

# What is wrong -> path, content type, body, status, the field that must be named
CASES: dict[str, tuple[str, str, Any, int, str | None]] = {
    "no body": (ENCODE, JSON, b"", 400, None),
    "not JSON": (ENCODE, JSON, b'{"items": [', 400, None),
    "JSON of another kind": (ENCODE, JSON, ["text"], 400, None),
    "no items": (ENCODE, JSON, {}, 400, "items"),
    "empty items": (ENCODE, JSON, {"items": []}, 400, "items"),
    "items of another kind": (ENCODE, JSON, {"items": "text"}, 400, "items"),
    "an item of another kind": (ENCODE, JSON, {"items": [{"text": "a"}, 7]}, 400, "items[1]"),
    "an item without text": (ENCODE, JSON, {"items": [{"id": "a"}]}, 400, "items[0].text"),
    "text of another kind": (ENCODE, JSON, {"items": [{"text": 7}]}, 400, "items[0].text"),
    "half a surrogate pair": (ENCODE, JSON, b'{"items": [{"text": "\\ud83d"}]}', 400, None),
    "too many items": (ENCODE, JSON, {"items": [{"text": "a"}] * 5000}, 400, "items"),
    "unknown model": ("/v1/encode/no/such-model", JSON, {"items": [{"text": "a"}]}, 404, "model"),
    "unknown profile": (f"{ENCODE}:nope", JSON, {"items": [{"text": "a"}]}, 404, "model"),
    "unknown dtype": (
        ENCODE,
        JSON,
        {"items": [{"text": "a"}], "params": {"output_dtype": "float12"}},
        400,
        "params.output_dtype",
    ),
    "unknown output": (
        ENCODE,
        JSON,
        {"items": [{"text": "a"}], "params": {"output_types": ["sparse"]}},
        400,
        "params.output_types",
    ),
    "unknown option": (
        ENCODE,
        JSON,
        {"items": [{"text": "a"}], "params": {"options": {"normalise": True}}},
        400,
        "params.options.normalise",
    ),
    "option of another kind": (
        ENCODE,
        JSON,
        {"items": [{"text": "a"}], "params": {"options": {"is_query": "yes"}}},
        400,
        "params.options.is_query",
    ),
    "params of another kind": (ENCODE, JSON, {"items": [{"text": "a"}], "params": []}, 400, "params"),
    "invalid MessagePack": (ENCODE, MSGPACK, b"\xc1\xff\x00", 400, None),
    "MessagePack cut short": (ENCODE, MSGPACK, msgpack.packb({"items": [{"text": "abc"}]})[:-2], 400, None),
    "an array of objects": (ENCODE, MSGPACK, msgpack.packb({"items": [{"text": ARRAY}]}), 400, None),
    "40 MB": (ENCODE, JSON, b'{"items": [{"text": "' + b"a" * (40 << 20) + b'"}]}', 413, None),
    "OpenAI: no model": ("/v1/embeddings", JSON, {"input": "a"}, 400, "model"),
    "OpenAI: no input": ("/v1/embeddings", JSON, {"model": MODEL}, 400, "input"),
    "OpenAI: empty input": ("/v1/embeddings", JSON, {"model": MODEL, "input": []}, 400, "input"),
    "OpenAI: mixed input": ("/v1/embeddings", JSON, {"model": MODEL, "input": ["a", 7]}, 400, "input[1]"),
    "OpenAI: unknown model": ("/v1/embeddings", JSON, {"model": "no/such-model", "input": "a"}, 404, "model"),
    "OpenAI: encoding": (
        "/v1/embeddings",
        JSON,
        {"model": MODEL, "input": "a", "encoding_format": "hex"},
        400,
        "encoding_format",
    ),
    "OpenAI: dimensions": ("/v1/embeddings", JSON, {"model": MODEL, "input": "a", "dimensions": 0}, 400, "dimensions"),
    "task: unknown primitive": (
        "/v1/tasks",
        JSON,
        {"primitive": "sing", "model": MODEL, "items": [{"text": "a"}]},
        400,
        "primitive",
    ),
}


def run(system: System) -> Figure:
    serving = system.shared()
    serving.warm()
    serving.next_beat()
    engines, forwards = serving.engine_pids(), serving.counters()["forwards"]
    wrong = [f"{name}: {problem}" for name, case in CASES.items() if (problem := _problem(serving, *case))]
    serving.next_beat()
    if serving.engine_pids() != engines:
        wrong.append("the engine is another one")
    if serving.counters()["forwards"] != forwards:
        wrong.append("forwards ran")
    serving.warm()  # and it still answers
    return Figure(f"{len(CASES) - len(wrong)} of {len(CASES)} cases", not wrong, "; ".join(wrong))


def _problem(serving: Serving, path: str, content_type: str, body: Any, status: int, param: str | None) -> str | None:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    found, answer = _post(serving, path, content_type, sent)
    if found != status:
        return f"status {found}, not {status}"
    error = answer.get("error", {})
    if not error.get("message") or not error.get("code"):
        return f"no code or message: {answer}"
    if param is not None and error.get("param") != param:
        return f"names {error.get('param')!r}, not {param!r}"
    return None


def _post(serving: Serving, path: str, content_type: str, body: bytes) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=60)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it was sent whole
            connection.request("POST", path, body, {"Content-Type": content_type, "Accept": JSON})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
