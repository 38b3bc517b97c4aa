"""What the published SDK sends, byte for byte, and answers that it can read; needs no SDK."""

import json
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import msgpack
import numpy as np
import pytest

from bench import wire
from bench.system import Serving
from tests.clients import sdk

REFUSED = {
    "bad_dtype": (400, "INVALID_INPUT", "params.output_dtype"),
    "bad_option": (400, "INVALID_INPUT", "params.options.normalise"),
    "image": (400, "INVALID_INPUT", "items[0].images"),
    "instruction": (400, "INVALID_INPUT", "options.instruction"),
    "sparse_of_dense": (400, "INVALID_INPUT", "params.output_types"),
    "too_long": (400, "INPUT_TOO_LONG", "items[0]"),
}
READ_IN_JSON = {"capacity", "get_model", "list_models"}
ENCODED = sorted({path.stem for path in sdk.RECORDED.glob("*.http")} - REFUSED.keys() - READ_IN_JSON)


def send(serving: Serving, recording: str) -> tuple[HTTPResponse, bytes]:
    """The recorded request; `http.client` adds the Host header that was left out of it, and nothing else."""
    raw = (sdk.RECORDED / f"{recording}.http").read_bytes()
    head, _, body = raw.partition(b"\r\n\r\n")
    request, *headers = head.decode("latin-1").split("\r\n")
    method, path, _ = request.split(" ")
    connection = HTTPConnection("127.0.0.1", serving.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for header in headers:
            connection.putheader(*header.split(": ", 1))
        connection.endheaders(body)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def items(serving: Serving, recording: str) -> list[dict[str, Any]]:
    response, body = send(serving, recording)
    assert response.status == 200, body
    answer: list[dict[str, Any]] = msgpack.unpackb(body, strict_map_key=False)["items"]
    return answer


@pytest.mark.parametrize("recording", ENCODED)
def test_encode_is_answered_in_the_msgpack_that_the_sdk_reads(shoal: Serving, recording: str) -> None:
    response, body = send(shoal, recording)

    assert response.status == 200, body
    assert response.headers["Content-Type"] == "application/msgpack"
    answer = msgpack.unpackb(body, strict_map_key=False)
    assert all(isinstance(wire.array(item["dense"]["values"]), np.ndarray) for item in answer["items"])


@pytest.mark.parametrize(("recording", "wanted"), REFUSED.items())
def test_refusals_name_code_and_field(shoal: Serving, recording: str, wanted: tuple[int, str, str]) -> None:
    response, body = send(shoal, recording)

    error = json.loads(body)["error"]
    assert (response.status, error["code"], error["param"]) == wanted


def test_items_come_back_in_order_with_their_ids(shoal: Serving) -> None:
    assert [item.get("id") for item in items(shoal, "list")] == ["a", None, "c"]


def test_three_hundred_items_give_three_hundred_different_vectors(shoal: Serving) -> None:
    vectors = {wire.array(item["dense"]["values"]).tobytes() for item in items(shoal, "many")}

    assert len(vectors) == 300


@pytest.mark.parametrize(
    ("recording", "dtype", "width"),
    [
        ("single", "<f4", 384),
        ("float16", "<f2", 384),
        ("profile_id", "<f2", 384),
        ("profile_option", "<f2", 384),
        ("int8", "|i1", 384),
        ("uint8", "|u1", 384),
        ("binary", "|u1", 48),
        ("ubinary", "|u1", 48),
    ],
)
def test_output_dtypes(shoal: Serving, recording: str, dtype: str, width: int) -> None:
    dense = items(shoal, recording)[0]["dense"]

    assert (dense["values"][b"type"], list(dense["values"][b"shape"]), dense["dims"]) == (dtype, [width], 384)


@pytest.mark.parametrize("recording", ["int8", "uint8"])
def test_quantised_values_come_with_what_undoes_it(shoal: Serving, recording: str) -> None:
    exact = wire.array(items(shoal, "output_types")[0]["dense"]["values"])

    dense = items(shoal, recording)[0]["dense"]

    restored = wire.array(dense["values"]).astype(np.float32) * dense["scale"] + dense["offset"]
    assert np.abs(restored - exact).max() < 2 / 255 * np.abs(exact).max()


def test_model_names_are_listed_for_the_sdk(shoal: Serving) -> None:
    _, body = send(shoal, "list_models")

    assert {"shoal-tests/minilm", "shoal-tests/minilm:half"} <= {model["name"] for model in json.loads(body)["models"]}


def test_health_says_that_it_is_a_gateway(shoal: Serving) -> None:
    _, body = send(shoal, "capacity")

    assert json.loads(body)["type"] == "gateway"
