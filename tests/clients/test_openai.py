"""The published `openai` package against the running product."""

import asyncio
import base64
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse
from tokenizers import Tokenizer

from bench import oracle
from bench.system import Serving
from catalog.keys import MARK

MODEL = "shoal-tests/minilm"
HELLO = "hello world"


@pytest.fixture
def client(shoal: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shoal.url}/v1", api_key="any word", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def hello_ids() -> list[int]:
    """The model's own ids for HELLO, special tokens left out."""
    tokenizer = Tokenizer.from_file(str(oracle.folder() / "tokenizer.json"))
    tokenizer.no_padding()  # the checkpoint's file fills up to 128
    ids: list[int] = tokenizer.encode(HELLO, add_special_tokens=False).ids
    return ids


def vectors(response: CreateEmbeddingResponse) -> np.ndarray:
    return np.array([entry.embedding for entry in response.data], np.float32)


def test_the_default_encoding_and_float_give_the_same_vector(client: openai.OpenAI) -> None:
    default = vectors(client.embeddings.create(model=MODEL, input=HELLO))
    floats = vectors(client.embeddings.create(model=MODEL, input=HELLO, encoding_format="float"))

    assert default.shape == (1, 384)
    assert np.abs(default - floats).max() < 1e-6


def test_base64_is_four_bytes_a_dimension(shoal: Serving) -> None:
    body = {"model": MODEL, "input": HELLO, "encoding_format": "base64"}

    answer = httpx.post(f"{shoal.url}/v1/embeddings", json=body).json()

    assert len(base64.b64decode(answer["data"][0]["embedding"])) == 4 * 384


def test_a_list_gives_vectors_in_order(client: openai.OpenAI) -> None:
    texts = ["one", "two words", "three small words"]

    together = client.embeddings.create(model=MODEL, input=texts)

    alone = np.concatenate([vectors(client.embeddings.create(model=MODEL, input=text)) for text in texts])
    assert [entry.index for entry in together.data] == [0, 1, 2]
    assert np.abs(vectors(together) - alone).max() < 1e-5


def test_the_models_own_token_ids_mean_their_text(client: openai.OpenAI, hello_ids: list[int]) -> None:
    text = client.embeddings.create(model=MODEL, input=HELLO)
    ids = client.embeddings.create(model=MODEL, input=[hello_ids])
    flat = client.embeddings.create(model=MODEL, input=hello_ids)

    assert np.abs(vectors(ids) - vectors(text)).max() < 1e-5
    assert np.abs(vectors(flat) - vectors(text)).max() < 1e-5


def test_several_lists_of_token_ids_give_several_vectors(client: openai.OpenAI, hello_ids: list[int]) -> None:
    answer = client.embeddings.create(model=MODEL, input=[hello_ids, hello_ids[:1], [535]])

    assert len(answer.data) == 3


def test_usage_counts_the_tokens_read(client: openai.OpenAI, hello_ids: list[int]) -> None:
    usage = client.embeddings.create(model=MODEL, input=[HELLO, HELLO]).usage

    assert usage.prompt_tokens == usage.total_tokens == 2 * (len(hello_ids) + 2)


def test_the_native_width_may_be_asked_for(client: openai.OpenAI) -> None:
    assert vectors(client.embeddings.create(model=MODEL, input=HELLO, dimensions=384)).shape == (1, 384)


@pytest.mark.parametrize("dimensions", [64, 0, -1, 385, "64", 64.5])
def test_impossible_dimensions_are_a_bad_request(client: openai.OpenAI, dimensions: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input=HELLO, dimensions=dimensions)

    assert (caught.value.param, caught.value.code) == ("dimensions", "invalid_input")


def test_an_empty_input_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input=[])

    assert caught.value.param == "input"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="shoal-tests/minilmm", input=HELLO)

    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_key_that_is_not_known_is_refused(shoal: Serving) -> None:
    with (
        openai.OpenAI(base_url=f"{shoal.url}/v1", api_key=f"{MARK}0123456789-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.embeddings.create(model=MODEL, input=HELLO)

    assert caught.value.code == "invalid_api_key"


def test_a_vector_that_is_not_finite_is_a_server_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.embeddings.create(model="shoal-tests/faults", input="zzznan")

    assert caught.value.code == "non_finite_output"


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    listed = {model.id for model in client.models.list()}

    assert {MODEL, f"{MODEL}:half", "sentence-transformers/all-MiniLM-L6-v2"} <= listed
    assert client.models.retrieve(MODEL).id == MODEL


async def test_the_async_client_gets_many_answers_at_once(shoal: Serving) -> None:
    async with openai.AsyncOpenAI(base_url=f"{shoal.url}/v1", api_key="any word", max_retries=0) as client:
        texts = [f"text number {number}" for number in range(50)]
        answers = await asyncio.gather(*(client.embeddings.create(model=MODEL, input=text) for text in texts))
        again = await client.embeddings.create(model=MODEL, input=texts)

    together = vectors(again)
    assert np.abs(np.concatenate([vectors(answer) for answer in answers]) - together).max() < 1e-5
