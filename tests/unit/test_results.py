import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
from celery import Celery
from celery.backends.base import KeyValueStoreBackend

from protocol import links, native, replies
from protocol.errors import ModelNotFound
from protocol.messages import Request
from protocol.replies import Reply
from workers.results import stored_form

REQUEST = Request("r1", "encode", "org/name", "d", cost=1, count=2, deadline=0, published=0, store=True)
DENSE = {"dims": 2, "dtype": "float32", "values": np.array([0.5, -1.0], np.float32)}
RESULT = {"dense": DENSE, "tokens": 3, "truncated": False}
ASKED = native.Asked("encode", "org/name", ("a", None))
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def as_celery_reads(stored: bytes) -> dict[str, Any]:
    """What a Celery client makes of the stored bytes."""
    backend = KeyValueStoreBackend(app=Celery(set_as_current=False))
    meta: dict[str, Any] = backend.decode_result(stored)
    return meta


def test_a_result_is_the_native_body() -> None:
    stored = stored_form(REQUEST, Reply("r1", [RESULT, RESULT], timing={"queue": 1.0, "forward": 2.0}), ASKED)
    assert as_celery_reads(stored)["result"] == {
        "model": "org/name",
        "items": [
            {"id": "a", "dense": {"dims": 2, "dtype": "float32", "values": [0.5, -1.0]}},
            {"dense": {"dims": 2, "dtype": "float32", "values": [0.5, -1.0]}},
        ],
        "usage": {"input_tokens": 6},
        "timing": {"total_ms": 3.0, "queue_ms": 1.0, "inference_ms": 2.0},
    }


def test_a_result_has_what_celery_looks_for() -> None:
    meta = json.loads(stored_form(REQUEST, Reply("r1", [RESULT, RESULT]), None, NOW))
    assert {name: meta[name] for name in ("status", "task_id", "date_done", "traceback", "children")} == {
        "status": "SUCCESS",
        "task_id": "r1",
        "date_done": "2030-01-01T00:00:00+00:00",
        "traceback": None,
        "children": [],
    }


def test_a_failure_raises_our_code_in_a_celery_client() -> None:
    error = ModelNotFound("no such model", param="model")
    meta = as_celery_reads(stored_form(REQUEST, Reply("r1", error=error.to_wire()), None))
    assert (meta["status"], type(meta["result"]).__name__, str(meta["result"])) == (
        "FAILURE",
        "MODEL_NOT_FOUND",
        "no such model",
    )


def test_a_failure_keeps_our_error_beside_celerys() -> None:
    error = ModelNotFound("no such model", param="model", extra={"suggestions": ["x"]})
    assert json.loads(stored_form(REQUEST, Reply("r1", error=error.to_wire()), None))["shoal_error"] == error.to_wire()


def test_arrays_of_any_kind_become_lists() -> None:
    arrays = {"half": np.array([1.5], np.float16), "turned": np.arange(6).reshape(2, 3).T, "bits": np.packbits([1, 0])}
    assert json.loads(native.dumps(arrays)) == {"half": [1.5], "turned": [[0, 3], [1, 4], [2, 5]], "bits": [128]}


def test_replies_packed_one_by_one_read_as_one_message() -> None:
    one, two = Reply("1", [RESULT]), Reply("2", error={"code": "EXPIRED", "message": "late"})
    joined = replies.join([replies.pack_one(one), replies.pack_one(two)])
    assert [reply.id for reply in replies.unpack(joined)] == ["1", "2"]


def test_a_unix_socket_is_spelled_as_kombu_wants_it() -> None:
    assert links.kombu_url("unix://:pw@/run/redis.sock?db=2") == "redis+socket://:pw@/run/redis.sock?virtual_host=2"


def test_other_urls_stay() -> None:
    assert links.kombu_url("redis://host:1/2") == "redis://host:1/2"
