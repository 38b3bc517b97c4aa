"""The check that measures hand every reply to."""

import json
from typing import Any

import msgpack
import numpy as np
import pytest

from bench.expected import Expected
from bench.load import LOST
from bench.wire import DIALECTS, Dialect

NATIVE: Dialect = DIALECTS["native"]
EXPECTED = Expected(["one", "two"], np.eye(2, 3, dtype=np.float32))


def answer(*vectors: Any) -> bytes:
    items = [{"dense": {"values": marked(np.array(vector, np.float32))}} for vector in vectors]
    return bytes(msgpack.packb({"items": items}))


def marked(array: np.ndarray) -> dict[bytes, Any]:
    return {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": array.shape, b"data": array.tobytes()}


def refusal(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": "…"}}).encode()


def test_the_right_vector_passes() -> None:
    assert EXPECTED.check(NATIVE)(1, 200, answer([0, 1, 0])) is None


def test_a_swapped_vector_is_named_with_its_owner() -> None:
    complaint = EXPECTED.check(NATIVE)(0, 200, answer([0, 1, 0]))

    assert complaint is not None
    assert "the vector of text 1" in complaint


def test_a_vector_that_is_not_finite_is_wrong() -> None:
    assert EXPECTED.check(NATIVE)(0, 200, answer([np.nan, 0, 0])) is not None


def test_two_vectors_for_one_text_are_wrong() -> None:
    assert EXPECTED.check(NATIVE)(0, 200, answer([1, 0, 0], [1, 0, 0])) is not None


@pytest.mark.parametrize(
    ("status", "body", "passes"),
    [
        (503, refusal("MODEL_LOADING"), True),
        (500, refusal("INFERENCE_ERROR"), False),
        (LOST, b"", False),
    ],
)
def test_only_typed_retryable_errors_may_refuse(status: int, body: bytes, passes: bool) -> None:
    assert (EXPECTED.check(NATIVE, may_be_refused=True)(0, status, body) is None) is passes


def test_where_none_may_be_refused_a_retryable_error_is_wrong() -> None:
    assert EXPECTED.check(NATIVE)(0, 503, refusal("MODEL_LOADING")) is not None
