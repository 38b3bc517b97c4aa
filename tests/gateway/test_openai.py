"""OpenAI's wording of encode, as its clients use it."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from inference.dialects import openai
from protocol.errors import InputTooLong, ModelLoading, NonFiniteOutput, TooManyRequests
from tests.gateway.double import DIMS, WorkerDouble, failing
from workers.families.fake import vector

PATH = "/v1/embeddings"


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(PATH, json={"model": "acme/fake", "input": "hello", **body})


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("one text", [{"text": "one text"}]),
        (["one", "two"], [{"text": "one"}, {"text": "two"}]),
        ([31, 415, 926], [{"token_ids": [31, 415, 926]}]),
        ([[31, 415, 926], [535]], [{"token_ids": [31, 415, 926]}, {"token_ids": [535]}]),
        (["", "  ", "\n\t"], [{"text": ""}, {"text": "  "}, {"text": "\n\t"}]),
        (["same", "same"], [{"text": "same"}, {"text": "same"}]),
    ],
)
async def test_input_takes_four_forms(
    client: httpx.AsyncClient, worker: WorkerDouble, given: Any, items: list[dict[str, Any]]
) -> None:
    response = await post(client, input=given)
    assert response.status_code == 200
    assert worker.received[0].payload.items == items
    assert [entry["index"] for entry in response.json()["data"]] == list(range(len(items)))


async def test_body_is_openais(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    body = (await post(client, input=["river stones", "moss"])).json()
    assert body["object"] == "list"
    assert body["model"] == "acme/fake"
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [entry["object"] for entry in body["data"]] == ["embedding", "embedding"]
    assert np.allclose(body["data"][0]["embedding"], vector("river stones", DIMS), atol=1e-7)


async def test_base64_holds_the_same_floats(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    packed = (await post(client, encoding_format="base64")).json()["data"][0]["embedding"]
    data = base64.b64decode(packed)
    assert len(data) == 4 * DIMS
    assert np.array_equal(np.frombuffer(data, "<f4"), vector("hello", DIMS))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_base64_is_little_endian_float32_whatever_the_model_ran_in(dtype: str) -> None:
    assert openai._base64(np.array([1.0, -0.5, 0.25], dtype)) == "AACAPwAAAL8AAIA+"


@pytest.mark.parametrize("dimensions", [0, -1, DIMS + 1, "64", 64.5, True, [], 10**30])
@pytest.mark.parametrize("model", ["acme/fake", "acme/nested"])
async def test_impossible_dimensions_are_refused(
    client: httpx.AsyncClient, worker: WorkerDouble, model: str, dimensions: Any
) -> None:
    content = b'{"model":"%s","input":"a","dimensions":%s}' % (model.encode(), _json(dimensions))
    response = await client.post(PATH, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "dimensions"
    assert worker.received == []


async def test_model_without_matryoshka_cannot_be_cut(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await post(client, dimensions=4)
    assert response.status_code == 400
    assert "cannot shorten" in response.json()["error"]["message"]


async def test_width_the_model_was_not_trained_for_is_refused(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await post(client, model="acme/nested", dimensions=3)
    assert response.status_code == 400
    assert "2, 4, 8" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("model", "dimensions", "sent"),
    [("acme/fake", DIMS, None), ("acme/fake", None, None), ("acme/nested", 4, 4), ("acme/nested", DIMS, None)],
)
async def test_possible_dimensions_reach_the_worker(
    client: httpx.AsyncClient, worker: WorkerDouble, model: str, dimensions: int | None, sent: int | None
) -> None:
    response = await post(client, model=model, dimensions=dimensions)
    assert response.status_code == 200
    assert worker.received[0].payload.options["dimensions"] == sent


@pytest.mark.parametrize("value", ["hex", "FLOAT", 1, [], {}])
async def test_unknown_encoding_format_is_refused(client: httpx.AsyncClient, value: Any) -> None:
    response = await post(client, encoding_format=value)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "encoding_format"


async def test_unknown_fields_are_ignored(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    assert (await post(client, user="u-1", encoding_format=None, shoe_size=43)).status_code == 200


@pytest.mark.parametrize("model", ["acme/fakee", "", "no/such/model", "m" * 10_000, "acme/fake:nope"])
async def test_unknown_model_is_404(client: httpx.AsyncClient, worker: WorkerDouble, model: str) -> None:
    response = await post(client, model=model)
    error = response.json()["error"]
    assert response.status_code == 404
    assert error["code"] == "model_not_found"
    assert error["type"] == "invalid_request_error"
    assert error["param"] == "model"
    assert len(error["message"]) < 400
    assert worker.received == []


@pytest.mark.parametrize("model", [None, 3, [], {}, True])
async def test_model_of_the_wrong_type_is_400(client: httpx.AsyncClient, model: Any) -> None:
    response = await post(client, model=model)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


async def test_missing_model_is_400(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json={"input": "a"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


async def test_suggestions_name_near_models(client: httpx.AsyncClient) -> None:
    error = (await post(client, model="acme/fakr")).json()["error"]
    assert error["suggestions"][0] == "acme/fake"


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (NonFiniteOutput("not finite"), 500, "non_finite_output", "server_error"),
        (ModelLoading("loading"), 503, "model_loading", "server_error"),
        (TooManyRequests("slow down"), 429, "rate_limit_exceeded", "invalid_request_error"),
    ],
)
async def test_worker_errors_are_openais(
    client: httpx.AsyncClient, worker: WorkerDouble, error: Any, status: int, code: str, kind: str
) -> None:
    worker.answer = failing(error)
    response = await post(client)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["type"] == kind
    assert response.headers.get("retry-after") == (None if error.retry_after is None else f"{error.retry_after:g}")


async def test_worker_error_names_the_input(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = failing(InputTooLong("too long", param="items[1].text"))
    assert (await post(client, input=["a", "b"])).json()["error"]["param"] == "input[1]"


async def test_model_that_cannot_give_vectors_is_400(client: httpx.AsyncClient) -> None:
    for model in ("acme/ranker", "acme/multi"):
        response = await post(client, model=model)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


def _json(value: Any) -> bytes:
    import orjson

    return str(value).encode() if isinstance(value, int) and value > 2**64 else orjson.dumps(value)
