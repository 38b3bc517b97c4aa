"""Speech in OpenAI's wording: forms with a file, five forms of answer, errors as its clients read them."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import openai
import pytest

from catalog.snapshot import Model, Snapshot
from inference.dialects.languages import NAMES
from inference.lean import LeanHandler
from protocol.errors import InputTooLong, InvalidInput, ModelLoading, TooManyRequests
from protocol.replies import Reply
from protocol.spec import ModelSpec
from tests.gateway.conftest import FAKE, Held, Setup, limits
from tests.gateway.double import Answer, WorkerDouble, failing

WRITER = ModelSpec("acme/writer", "fake", ("extract",), inputs=("audio",), load={"n": 5})
READER = ModelSpec("acme/reader", "fake", ("extract",), inputs=("text",), load={"n": 6})
PATH = "/v1/audio/transcriptions"
TRANSLATE = "/v1/audio/translations"
SOUND = b"RIFF" + bytes(range(256))
SEGMENTS = [
    {"text": "Hello -->", "start_ms": 0, "end_ms": 1500, "tokens": [1, 2], "no_speech": 0.1, "avg_logprob": -0.2},
    {"text": "World.", "start_ms": 3_723_004, "end_ms": 3_725_000, "tokens": [3], "no_speech": 0.1, "avg_logprob": -1},
]
DATA = {"transcript": "Hello --> World.", "language": "de", "duration_ms": 3_725_000}


@pytest.fixture
def setup(setup: Setup) -> Setup:
    setup.catalog = Held(Snapshot(1, (Model(WRITER), Model(READER), Model(FAKE))))
    return setup


@pytest.fixture
def worker(worker: WorkerDouble) -> WorkerDouble:
    worker.answer = hears(DATA)
    return worker


def hears(data: dict[str, Any]) -> Answer:
    def answer(received: Any) -> Reply:
        more = {"segments": SEGMENTS} if received.payload.options.get("timestamps") else {}
        return Reply(received.request.id, [{"data": {**data, **more}, "audio_ms": data["duration_ms"], "tokens": 0}])

    return answer


async def post(
    client: httpx.AsyncClient, path: str = PATH, *, file: Any = ("a.wav", SOUND), **fields: Any
) -> httpx.Response:
    files = {"file": file} if file is not None else {"file": ("", b"")}
    return await client.post(path, data={"model": "acme/writer", **fields}, files=files)


async def test_a_file_reaches_the_worker_as_it_is(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await post(client, language="de", prompt="Ada, Babbage", temperature="0")

    assert response.status_code == 200
    assert response.json() == {"text": "Hello --> World.", "usage": {"type": "duration", "seconds": 3725.0}}
    [received] = worker.received
    assert received.request.primitive == "extract"
    assert received.payload.items == [{"audio": {"data": SOUND}}]
    assert received.payload.options == {"task": "transcribe", "language": "de", "instruction": "Ada, Babbage"}


async def test_a_large_file_goes_through_the_blob_store(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    sound = SOUND * 20_000
    await post(client, file=("a.wav", sound))
    assert "blob" in worker.received[0].body[1]
    assert worker.received[0].payload.items == [{"audio": {"data": sound}}]


async def test_a_translation_is_asked_for_as_a_task(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    body = (await post(client, TRANSLATE, response_format="verbose_json")).json()
    assert worker.received[0].payload.options == {"task": "translate", "timestamps": True}
    assert (body["task"], body["language"]) == ("translate", "english")


async def test_text_is_plain(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await post(client, response_format="text")
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.text == "Hello --> World.\n"


async def test_subtitles_are_numbered_and_timed(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    assert (await post(client, response_format="srt")).text == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello ->\n\n2\n01:02:03,004 --> 01:02:05,000\nWorld.\n\n"
    )
    assert (await post(client, response_format="vtt")).text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello ->\n\n01:02:03.004 --> 01:02:05.000\nWorld.\n\n"
    )


async def test_verbose_json_has_segments(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    body = (await post(client, response_format="verbose_json", **{"timestamp_granularities[]": "segment"})).json()
    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "german", 3725.0)
    ratio = body["segments"][0].pop("compression_ratio")
    assert 0 < ratio < 1
    assert body["segments"][0] == {
        "id": 0, "seek": 0, "start": 0.0, "end": 1.5, "text": "Hello -->", "tokens": [1, 2],
        "temperature": 0.0, "avg_logprob": -0.2, "no_speech_prob": 0.1,
    }  # fmt: skip


async def test_a_language_without_a_name_keeps_its_code(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    worker.answer = hears({**DATA, "language": "tlh"})
    assert (await post(client, response_format="verbose_json")).json()["language"] == "tlh"


def test_names_of_languages_are_words() -> None:
    assert (NAMES["de"], NAMES["ht"], len(NAMES)) == ("german", "haitian creole", 100)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"response_format": "xml"}, "response_format"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"stream": "true"}, "stream"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy"),
        ({"timestamp_granularities[]": ["word", "segment"], "response_format": "verbose_json"}, "timestamp_gran"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_gran"),
        ({"language": ["de", "en"]}, "language"),
        ({"shoe_size": "43"}, "shoe_size"),
        ({"prompt": "x" * 70_000}, "prompt"),
    ],
)
async def test_what_is_wrong_with_a_form_is_named(
    client: httpx.AsyncClient, worker: WorkerDouble, fields: dict[str, Any], param: str
) -> None:
    response = await post(client, **fields)
    error = response.json()["error"]
    assert response.status_code == (404 if fields == {"model": ""} else 400)
    assert error["param"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert worker.received == []


async def test_a_translation_has_no_language_to_choose(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await post(client, TRANSLATE, language="de")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "language")


@pytest.mark.parametrize("file", [None, ("a.wav", b"")])
async def test_a_file_is_needed(client: httpx.AsyncClient, worker: WorkerDouble, file: Any) -> None:
    response = await post(client, file=file)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")


async def test_two_files_are_one_too_many(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    files = [("file", ("a.wav", SOUND)), ("file", ("b.wav", SOUND))]
    response = await client.post(PATH, data={"model": "acme/writer"}, files=files)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{}", "application/json"),
        (b"", "multipart/form-data; boundary=x"),
        (b"--x\r\n", "multipart/form-data"),
        (b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nacme', "multipart/form-data; boundary=x"),
        (b"nothing\r\n--y--", "multipart/form-data; boundary=x"),
        (b"--x--", "multipart/form-data; boundary=" + "x" * 300),
        (b"--x" + b"\r\n\r\n--x" * 3000 + b"--x--", "multipart/form-data; boundary=x"),
        (b"--x--", "multipart/form-data; boundary=x"),
    ],
)
async def test_what_is_no_form_is_refused(
    client: httpx.AsyncClient, worker: WorkerDouble, content: bytes, kind: str
) -> None:
    response = await client.post(PATH, content=content, headers={"Content-Type": kind})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert worker.received == []


async def test_thousands_of_fields_are_refused(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    many: Any = ["x"] * 2000
    response = await post(client, prompt=many)
    assert response.status_code == 400


@limits(max_body_bytes=64 << 10)
async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(
    client: httpx.AsyncClient, worker: WorkerDouble
) -> None:
    response = await post(client, file=("a.wav", bytes(65 << 10)))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "input_too_long"


@pytest.mark.parametrize("model", ["acme/reader", "acme/fake"])
async def test_a_model_that_does_not_listen_is_refused(
    client: httpx.AsyncClient, worker: WorkerDouble, model: str
) -> None:
    response = await post(client, model=model)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == {"acme/reader": "file", "acme/fake": "model"}[model]


async def test_a_model_that_is_not_there_is_404(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    response = await post(client, model="whisper-9")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (InputTooLong("audio has 3600 seconds; at most 1800 are read", param="items[0].audio"), "file"),
        (InvalidInput("audio needs its rate", param="items[0].audio.sample_rate"), "file"),
    ],
)
async def test_a_file_that_failed_fails_the_call(
    client: httpx.AsyncClient, worker: WorkerDouble, error: Any, param: str
) -> None:
    worker.answer = lambda received: Reply(received.request.id, [{"error": error.to_wire()}])
    response = await post(client)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert response.json()["error"]["message"] == error.message


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (InvalidInput("no such language", param="options.language"), 400, "language"),
        (InvalidInput("too long a prompt", param="options.instruction"), 400, "prompt"),
        (InvalidInput("reads no timestamps", param="options.timestamps"), 400, "response_format"),
        (InvalidInput("does not translate", param="options.task"), 400, "model"),
        (ModelLoading("loading"), 503, None),
        (TooManyRequests("slow down"), 429, None),
    ],
)
async def test_errors_of_the_call_name_the_forms_fields(
    client: httpx.AsyncClient, worker: WorkerDouble, error: Any, status: int, param: str | None
) -> None:
    worker.answer = failing(error)
    response = await post(client)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert ("Retry-After" in response.headers) == (status > 400)


@pytest.fixture
async def published(app: LeanHandler) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client, speaking to the application in this process."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))
    async with openai.AsyncOpenAI(
        base_url="http://testserver/v1", api_key="any word", max_retries=0, http_client=http
    ) as client:
        yield client


async def test_openais_client_reads_every_answer(published: openai.AsyncOpenAI, worker: WorkerDouble) -> None:
    ask: Any = published.audio.transcriptions.create
    file = ("a.wav", SOUND)
    assert (await ask(model="acme/writer", file=file)).text == "Hello --> World."
    assert await ask(model="acme/writer", file=file, response_format="text") == "Hello --> World.\n"
    assert (await ask(model="acme/writer", file=file, response_format="srt")).startswith("1\n00:00:00,000")
    verbose = await ask(
        model="acme/writer", file=file, response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert [segment.end for segment in verbose.segments] == [1.5, 3725.0]
    assert verbose.language == "german"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's word on one of its overloads
async def test_openais_client_translates(published: openai.AsyncOpenAI, worker: WorkerDouble) -> None:
    found = await published.audio.translations.create(model="acme/writer", file=("a.wav", SOUND))
    assert found.text == "Hello --> World."


async def test_openais_client_raises_what_was_wrong(published: openai.AsyncOpenAI, worker: WorkerDouble) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await published.audio.transcriptions.create(model="acme/writer", file=("a.wav", SOUND), temperature=0.7)
    assert refused.value.param == "temperature"
