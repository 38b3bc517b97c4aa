"""Section D of the cases under load: a worker's engines, shared by callers who must not notice each other."""

import gc
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest

from catalog.snapshot import Model
from protocol.messages import Payload, Request
from protocol.replies import Reply
from tests.models import made_documents as made
from tests.models import test_images, test_ocr
from tests.models.conftest import MINILM, shipped
from tests.models.test_cases_media import clip as clip  # a fixture
from tests.models.test_docling import SPEC as DOCLING
from tests.models.test_docling import document
from tests.models.test_ocr import item, picture, png
from tests.unit.workers_doubles import RecordingOutbox, start_dispatcher
from workers.deliveries import Delivery
from workers.dispatcher import Dispatcher
from workers.families.alone import Alone

pytestmark = pytest.mark.timeout(900)  # on two cores that others use too, the networks take their time

OCR = replace(test_ocr.SPEC, bundle="documents")
ENCODER = shipped(MINILM)
WORDS = ["ANCHOR", "BISHOP", "CANDLE", "DESERT", "EMBLEM", "FALCON", "GARNET", "HARBOR"]
SHEET = (460, 190)
_ids = itertools.count(1)


class Worker:
    """A dispatcher with real engines, asked as the broker would ask it."""

    def __init__(self, dispatcher: Dispatcher, outbox: RecordingOutbox) -> None:
        self.dispatcher = dispatcher
        self._outbox = outbox

    def ask(self, spec: Any, payload: Payload, timeout_s: float = 600.0) -> Reply:
        now = time.time()
        request = Request(
            id=f"case-{next(_ids)}",
            primitive=spec.primitives[0],
            model=spec.model,
            digest=spec.digest,
            cost=len(payload.items),
            count=len(payload.items),
            deadline=now + timeout_s,
            published=now,
        )
        self.dispatcher.submit(Delivery(request, load=lambda: payload))
        [reply] = self._outbox.wait_for([request.id], timeout_s)
        return reply

    def engine_of(self, bundle: str) -> int:
        """Its process id."""
        return next(int(one["pid"]) for one in self.dispatcher.status()["engines"] if one["bundle"] == bundle)


@pytest.fixture(scope="module")
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Docling, OCR and an encoder of texts; the first two share an engine."""
    outbox = RecordingOutbox()
    data = request.config.cache.mkdir("shoal-data")
    models = [Model(spec) for spec in (DOCLING, OCR, ENCODER)]
    dispatcher = start_dispatcher(data, outbox, models, offline=True)
    yield Worker(dispatcher, outbox)
    dispatcher.drain(0.0)


def result_of(reply: Reply) -> Mapping[str, Any]:
    assert reply.error is None and reply.results is not None, reply.error
    return reply.results[0]


def test_of_eight_callers_at_once_two_are_wrong_and_six_are_answered(worker: Worker) -> None:
    """S034: a damaged image and an option that the model does not read, each its own caller's error."""
    payloads = [Payload([item(png(picture([word], SHEET)))]) for word in WORDS]
    payloads[2] = Payload([item(png(picture([WORDS[2]], SHEET))[:300])])
    payloads[5] = Payload(payloads[5].items, {"labels": ["person"]})

    with ThreadPoolExecutor(8) as callers:
        replies = list(callers.map(lambda payload: worker.ask(OCR, payload), payloads))

    damaged = replies[2].results[0]["error"] if replies[2].results else {}
    unread = replies[5].error or {}
    assert [word for word, reply in zip(WORDS, replies, strict=True) if reply.results and _text(reply) == word] == [
        word for place, word in enumerate(WORDS) if place not in (2, 5)
    ]
    assert (damaged["param"], unread["param"]) == ("items[0].images[0]", "options.labels")
    assert damaged["message"] != unread["message"]
    assert not any(word in str(damaged) + str(unread) for word in WORDS)


def _text(reply: Reply) -> str:
    assert reply.results is not None
    return str(reply.results[0].get("data", {}).get("text"))


# The case's own hundred rounds take a quarter of an hour on two cores: SHOAL_CASE_ROUNDS=100 runs them.
ROUNDS = int(os.environ.get("SHOAL_CASE_ROUNDS", "8"))
FEW_OR_MANY = [1, pytest.param(ROUNDS, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("rounds", FEW_OR_MANY)
def test_no_caller_ever_reads_another_callers_image(worker: Worker, rounds: int) -> None:
    """S048: eight of them, each with a code word that is on its image twenty times."""
    sheets = [Payload([item(png(picture([" ".join([word] * 5)] * 4, (720, 270))))]) for word in WORDS]
    alone = [_text(worker.ask(OCR, sheet)) for sheet in sheets]

    def ask(place: int) -> list[str]:
        return [_text(worker.ask(OCR, sheets[place])) for _ in range(rounds)]

    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(ask, range(8)))

    assert [set(text.split()) for text in alone] == [{word} for word in WORDS]
    assert found == [[text] * rounds for text in alone]


SMALL_OR_LARGE = [5, pytest.param(200, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("count", SMALL_OR_LARGE)
def test_conversions_at_once_are_those_of_one_by_one_beside_other_work(worker: Worker, count: int) -> None:
    """S047: four callers with small PDFs, and one whose texts are encoded by the same worker all the while."""
    texts = [f"Page {place} of a small file" for place in range(count)]
    files = [document(made.pdf([text], size=SHEET)) for text in texts]
    result_of(worker.ask(DOCLING, Payload(files[:1], {"task": "fast"})))
    vector = result_of(worker.ask(ENCODER, Payload([{"text": "river stones"}])))["dense"]["values"]

    def convert(_: int) -> list[str]:
        replies = [worker.ask(DOCLING, Payload([one], {"task": "fast"})) for one in files]
        return [result_of(reply)["data"]["markdown"] for reply in replies]

    def encode(_: int) -> float:
        found = result_of(worker.ask(ENCODER, Payload([{"text": "river stones"}])))["dense"]["values"]
        return float(np.abs(found - vector).max())

    with ThreadPoolExecutor(5) as callers:
        converting = [callers.submit(convert, place) for place in range(4)]
        apart = list(callers.map(encode, range(count)))

    assert [one.result() for one in converting] == [texts] * 4
    assert max(apart) < 1e-4


def test_when_the_parsers_process_dies_its_jobs_run_again_and_vectors_go_on(worker: Worker) -> None:
    """S047."""
    asked = Payload([document(made.pdf(["Still here"] * 12, size=SHEET))], {"task": "ocr"})
    result_of(worker.ask(DOCLING, Payload(asked.items, {"task": "fast"})))
    result_of(worker.ask(ENCODER, Payload([{"text": "river stones"}])))
    encoders = worker.engine_of("base")

    with ThreadPoolExecutor(2) as callers:
        converting = callers.submit(worker.ask, DOCLING, asked)
        time.sleep(1.0)
        os.kill(worker.engine_of("documents"), signal.SIGKILL)
        result_of(worker.ask(ENCODER, Payload([{"text": "tide table"}])))
        found = result_of(converting.result())

    assert found["data"]["markdown"].split("\n\n") == ["Still here"] * 12
    assert worker.engine_of("base") == encoders


def resident_after(counts: tuple[int, int], step: Callable[[], object]) -> list[int]:
    """Bytes that this process holds after so many steps, all told."""
    held = []
    for more in (counts[0], counts[1] - counts[0]):
        for _ in range(more):
            step()
        gc.collect()
        held.append(psutil.Process().memory_info().rss)
    return held


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", ["fast", "ocr"])
def test_memory_does_not_climb_with_conversions(task: str) -> None:
    """S049: five hundred of a file of three pages; as many as SHOAL_CASE_ROUNDS, 24 at least, where pages are read
    from pixels.
    """
    model = Alone(DOCLING, None)
    asked = Payload([document(made.pdf(["one", "two", "three"], size=SHEET))], {"task": task})

    early, late = resident_after((50, 500) if task == "fast" else (8, max(24, ROUNDS)), lambda: model.run(asked))

    assert late < early * 1.1


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_memory_does_not_climb_with_image_vectors(clip: Alone) -> None:
    """S049: five hundred images."""
    files = [test_images.encoded(test_images.circle((64 + place, 48))) for place in range(50)]
    asked = itertools.cycle([Payload([item(data)]) for data in files])

    early, late = resident_after((50, 500), lambda: clip.run(next(asked)))

    assert late < early * 1.1
