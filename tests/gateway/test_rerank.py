"""Ranking in the wordings of Cohere, Jina and text-embeddings-inference, as their clients use them."""

from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from catalog.snapshot import Model, Snapshot
from protocol.errors import InputTooLong, ModelLoading, NonFiniteOutput, TooManyRequests
from protocol.replies import Reply
from tests.gateway.conftest import FAKE, NESTED, RANKER, Held, Setup
from tests.gateway.double import DIMS, Answer, WorkerDouble, failing
from workers.families.fake import vector

COHERE = ["/v1/rerank", "/v2/rerank"]
BODY: Mapping[str, Any] = {"model": "acme/ranker", "query": "which", "documents": ["a", {"text": "b"}, "c"]}
TEI: Mapping[str, Any] = {"query": "which", "texts": ["a", "b", "c"]}
RAW = {"instruction": None, "normalize": True, "overflow": "truncate"}


@pytest.fixture
def setup(setup: Setup) -> Setup:
    """One model that ranks, one that encodes."""
    setup.catalog = Held(Snapshot(1, (Model(RANKER), Model(FAKE))))
    return setup


@pytest.fixture
def ranker(worker: WorkerDouble) -> WorkerDouble:
    worker.answer = scores(0.25, 0.75, 0.25)
    return worker


def scores(*found: float, **more: Any) -> Answer:
    """Three tokens for each item."""
    results = [{"score": score, "tokens": 3, **more} for score in found]
    return lambda received: Reply(received.request.id, results[: received.request.count])


@pytest.mark.parametrize("path", COHERE)
async def test_documents_are_ranked_best_first(client: httpx.AsyncClient, ranker: WorkerDouble, path: str) -> None:
    answer = (await client.post(path, json=BODY)).json()

    assert answer["results"] == [
        {"index": 1, "relevance_score": 0.75},
        {"index": 0, "relevance_score": 0.25},
        {"index": 2, "relevance_score": 0.25},
    ]
    assert answer["model"] == "acme/ranker"
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert answer["meta"] == {"api_version": {"version": path[2]}}


async def test_a_worker_is_asked_for_shares(client: httpx.AsyncClient, ranker: WorkerDouble) -> None:
    """S006: `relevance_score` is from 0 to 1 on every model."""
    await client.post("/v1/rerank", json=BODY)

    [received] = ranker.received
    assert received.payload.query == {"text": "which"}
    assert received.payload.items == [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    assert received.payload.options == RAW


async def test_options_are_the_native_ones(client: httpx.AsyncClient, ranker: WorkerDouble) -> None:
    options = {"normalize": False, "overflow": "error"}
    await client.post("/v1/rerank", json={**BODY, "instruction": "find", "options": options})
    assert ranker.received[0].payload.options == {"instruction": "find", **options}


@pytest.mark.parametrize(("top", "count"), [(1, 1), (3, 3), (99, 3), (None, 3)])
async def test_no_more_results_than_asked(
    client: httpx.AsyncClient, ranker: WorkerDouble, top: int | None, count: int
) -> None:
    answer = (await client.post("/v2/rerank", json={**BODY, "top_n": top})).json()
    assert [result["index"] for result in answer["results"]] == [1, 0, 2][:count]
    assert answer["usage"]["total_tokens"] == 9


async def test_documents_come_back_if_asked(client: httpx.AsyncClient, ranker: WorkerDouble) -> None:
    answer = (await client.post("/v1/rerank", json={**BODY, "return_documents": True})).json()
    assert [result["document"] for result in answer["results"]] == [{"text": "b"}, {"text": "a"}, {"text": "c"}]


async def test_a_cut_document_is_marked(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = scores(0.5, truncated=True)
    answer = (await client.post("/v1/rerank", json={**BODY, "documents": ["a"]})).json()
    assert answer["results"] == [{"index": 0, "relevance_score": 0.5, "truncated": True}]


async def test_a_blank_document_is_scored(client: httpx.AsyncClient, ranker: WorkerDouble) -> None:
    """S031: and a blank query is refused, below."""
    assert (await client.post("/v1/rerank", json={**BODY, "documents": ["", " "]})).status_code == 200


@pytest.mark.parametrize("path", COHERE)
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"query": None}, "query"),
        ({"query": " \n"}, "query"),
        ({"query": ["a"]}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"documents": ["a", 3]}, "documents[1]"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].text"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"max_tokens_per_doc": 100}, "max_tokens_per_doc"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"instruction": 3}, "instruction"),
        ({"options": 3}, "options"),
        ({"options": {"normalise": True}}, "options.normalise"),
        ({"model": "acme/fake"}, "model"),  # which encodes
    ],
)
async def test_what_is_wrong_with_a_rerank_is_named(
    client: httpx.AsyncClient, ranker: WorkerDouble, path: str, change: Mapping[str, Any], param: str
) -> None:
    response = await client.post(path, json={**BODY, **change})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert ranker.received == []


async def test_fields_that_are_null_count_as_not_given(client: httpx.AsyncClient, ranker: WorkerDouble) -> None:
    nothing = {"top_n": None, "return_documents": None, "max_chunks_per_doc": None, "options": None}
    assert (await client.post("/v1/rerank", json={**BODY, **nothing})).status_code == 200


async def test_an_unknown_model_is_not_found(client: httpx.AsyncClient, ranker: WorkerDouble) -> None:
    response = await client.post("/v1/rerank", json={**BODY, "model": "acme/rankr"})
    assert response.status_code == 404
    assert "acme/ranker" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InputTooLong("too long", param="items[1].text", extra={"limit": 512}), 400, "input_too_long"),
        (TooManyRequests("later"), 429, "rate_limit_exceeded"),
        (ModelLoading("soon"), 503, "model_loading"),
        (NonFiniteOutput("no number"), 500, "non_finite_output"),
    ],
)
async def test_errors_have_a_message_where_either_client_looks(
    client: httpx.AsyncClient, worker: WorkerDouble, error: Any, status: int, code: str
) -> None:
    worker.answer = failing(error)

    response = await client.post("/v2/rerank", json=BODY)

    body = response.json()
    assert (response.status_code, body["error"]["code"]) == (status, code)
    assert body["message"] == body["error"]["message"] == error.message
    assert body["error"]["param"] == ("documents[1]" if error.param else None)


async def test_the_only_ranker_answers_where_a_body_names_no_model(
    client: httpx.AsyncClient, ranker: WorkerDouble
) -> None:
    response = await client.post("/rerank", json=TEI)

    assert response.json() == [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}, {"index": 2, "score": 0.25}]
    assert response.headers["X-Compute-Tokens"] == "9"
    assert ranker.received[0].payload.options == {**RAW, "overflow": "error"}


async def test_raw_scores_texts_and_cutting_are_teis(client: httpx.AsyncClient, ranker: WorkerDouble) -> None:
    wanted = {"raw_scores": True, "return_text": True, "truncate": True, "truncation_direction": "Right"}

    answer = (await client.post("/rerank", json={**TEI, **wanted})).json()

    assert answer[0] == {"index": 1, "score": 0.75, "text": "b"}
    assert ranker.received[0].payload.options == {**RAW, "normalize": False}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"query": ""}, "query"),
        ({"texts": []}, "texts"),
        ({"texts": "a"}, "texts"),
        ({"texts": ["a"] * 1001}, "texts"),
        ({"texts": ["a", {"text": "b"}]}, "texts[1]"),
        ({"raw_scores": 1}, "raw_scores"),
        ({"return_text": "yes"}, "return_text"),
        ({"truncate": 0}, "truncate"),
        ({"truncation_direction": "Left"}, "truncation_direction"),
        ({"documents": ["a"]}, "documents"),
    ],
)
async def test_what_is_wrong_with_a_tei_rerank_is_named(
    client: httpx.AsyncClient, ranker: WorkerDouble, change: Mapping[str, Any], param: str
) -> None:
    response = await client.post("/rerank", json={**TEI, **change})
    body = response.json()
    assert (response.status_code, body["error_type"], body["param"]) == (400, "Validation", param)
    assert ranker.received == []


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (InputTooLong("too long", param="items[1].text"), "Validation", "texts[1]"),
        (TooManyRequests("later"), "Overloaded", None),
        (NonFiniteOutput("no number"), "Backend", None),
    ],
)
async def test_teis_errors_say_their_kind(
    client: httpx.AsyncClient, worker: WorkerDouble, error: Any, kind: str, param: str | None
) -> None:
    worker.answer = failing(error)
    response = await client.post("/rerank", json=TEI)
    body = response.json()
    assert (response.status_code, body["error"], body["error_type"]) == (error.status, error.message, kind)
    assert body.get("param") == param


class TestSeveralModels:
    @pytest.fixture
    def setup(self, setup: Setup) -> Setup:
        setup.catalog = Held(Snapshot(1, (Model(RANKER), Model(FAKE), Model(NESTED))))
        return setup

    async def test_one_of_them_must_be_named(self, client: httpx.AsyncClient, worker: WorkerDouble) -> None:
        response = await client.post("/embed", json={"inputs": "hello"})
        assert (response.status_code, response.json()["param"]) == (400, "model")
        assert "X-Shoal-Model" in response.json()["error"]

    async def test_a_header_names_it(self, client: httpx.AsyncClient, worker: WorkerDouble) -> None:
        response = await client.post("/embed", json={"inputs": "hello"}, headers={"X-Shoal-Model": "acme/nested"})
        assert response.status_code == 200
        assert worker.received[0].request.model == "acme/nested"

    async def test_the_body_counts_more_than_the_header(self, client: httpx.AsyncClient, worker: WorkerDouble) -> None:
        body = {"inputs": "hello", "model": "acme/fake"}
        await client.post("/embed", json=body, headers={"X-Shoal-Model": "acme/nested"})
        assert worker.received[0].request.model == "acme/fake"


@pytest.mark.parametrize("given", ["hello", ["hello", "moss"]])
async def test_vectors_are_plain_lists(client: httpx.AsyncClient, worker: WorkerDouble, given: Any) -> None:
    rows = (await client.post("/embed", json={"inputs": given})).json()

    texts = [given] if isinstance(given, str) else given
    assert np.allclose(rows, [vector(text, DIMS) for text in texts], atol=1e-6)


async def test_embeds_options_are_teis(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    await client.post("/embed", json={"inputs": "a", "truncate": True, "normalize": False, "prompt_name": "query"})

    options = worker.received[0].payload.options
    assert (options["overflow"], options["normalize"], options["is_query"]) == ("truncate", False, True)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"inputs": None}, "inputs"),
        ({"inputs": ["a", 3]}, "inputs[1]"),
        ({"normalize": 1}, "normalize"),
        ({"prompt_name": "poem"}, "prompt_name"),
        ({"dimensions": 0}, "dimensions"),
        ({"input": "a"}, "input"),
    ],
)
async def test_what_is_wrong_with_an_embed_is_named(
    client: httpx.AsyncClient, worker: WorkerDouble, change: Mapping[str, Any], param: str
) -> None:
    response = await client.post("/embed", json={"inputs": "a", **change})
    assert (response.status_code, response.json()["param"]) == (400, param)
    assert worker.received == []


async def test_embeds_errors_speak_of_inputs(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = failing(InputTooLong("too long", param="items[0].text"))
    assert (await client.post("/embed", json={"inputs": ["a"]})).json()["param"] == "inputs[0]"
