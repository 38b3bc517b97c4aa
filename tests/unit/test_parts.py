"""Items of several parts, as a long text has: each part has its forward, one bad part fails its item alone."""

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from catalog.snapshot import Model
from protocol.errors import ShoalError
from protocol.messages import Payload, Request
from protocol.replies import Reply
from protocol.spec import ModelSpec
from tests.unit.workers_doubles import RecordingOutbox, delivery, fake_model, start_dispatcher
from workers.deliveries import Delivery
from workers.families import Parts, Prepared
from workers.jobs import Job

WINDOW = 4  # words
_ids = itertools.count(1)


def reader(**load: Any) -> Model:
    return Model(ModelSpec("org/reader", "fake", ("extract",), max_tokens=WINDOW, load=load))


def ranker() -> Model:
    return Model(ModelSpec("org/ranker", "fake", ("score",)))


def run(folder: Path, model: Model, payload: Payload, **config: Any) -> Reply:
    outbox = RecordingOutbox()
    dispatcher = start_dispatcher(folder, outbox, [model], **config)
    now, spec = time.time(), model.spec
    request = Request(
        id=f"parts-{next(_ids)}",
        primitive=spec.primitives[0],
        model=spec.model,
        digest=spec.digest,
        cost=len(payload.items),
        count=len(payload.items),
        deadline=now + 60,
        published=now,
    )
    try:
        dispatcher.submit(Delivery(request, load=lambda: payload))
        [reply] = outbox.wait_for([request.id])
        return reply
    finally:
        dispatcher.drain(5)


def test_windows_are_joined_with_offsets_into_the_whole_text(tmp_path: Path) -> None:
    text = "one two  three four five six\nseven two nine"

    reply = run(tmp_path, reader(), Payload([{"text": text}], {"labels": ["two", "six"]}), budget=WINDOW)

    assert reply.results is not None
    [result] = reply.results
    spans = [(found["label"], text[found["start"] : found["end"]], found["start"]) for found in result["entities"]]
    assert spans == [("two", "two", 4), ("six", "six", 25), ("two", "two", 35)]
    assert (result["tokens"], result["truncated"]) == (9, False)


def test_one_bad_part_fails_its_item_and_no_other(tmp_path: Path) -> None:
    texts = ["one two three four boom six", "two", "x " * 20 + "two"]

    reply = run(tmp_path, reader(), Payload([{"text": text} for text in texts], {"labels": ["two"]}))

    assert reply.results is not None
    bad, short, long = reply.results
    assert bad["error"]["param"] == "items[0]"
    assert len(short["entities"]) == len(long["entities"]) == 1


def test_an_item_without_parts_is_answered(tmp_path: Path) -> None:
    reply = run(tmp_path, reader(), Payload([{"text": ""}, {"text": "two"}], {"labels": ["two"]}))

    assert reply.results is not None
    assert [len(result["entities"]) for result in reply.results] == [0, 1]


@pytest.mark.parametrize(("overflow", "found"), [("truncate", 1), ("window", 2)])
def test_long_texts_are_read_as_asked(tmp_path: Path, overflow: str, found: int) -> None:
    payload = Payload([{"text": "two b c d two"}], {"labels": ["two"], "overflow": overflow})

    reply = run(tmp_path, reader(), payload)

    assert reply.results is not None
    assert len(reply.results[0]["entities"]) == found
    assert reply.results[0]["truncated"] is (overflow == "truncate")


def test_a_text_that_is_too_long_may_be_refused_alone(tmp_path: Path) -> None:
    payload = Payload([{"text": "a b c d e"}, {"text": "two"}], {"labels": ["two"], "overflow": "error"})

    reply = run(tmp_path, reader(), payload)

    assert reply.results is not None
    assert reply.results[0]["error"]["code"] == "INPUT_TOO_LONG"
    assert len(reply.results[1]["entities"]) == 1


def test_an_option_that_the_family_does_not_read_is_refused(tmp_path: Path) -> None:
    reply = run(tmp_path, reader(), Payload([{"text": "a"}], {"threshold": 0.5}))

    assert reply.error is not None
    assert (reply.error["code"], reply.error["param"]) == ("INVALID_INPUT", "options.threshold")


def test_pairs_are_scored_each_with_the_query(tmp_path: Path) -> None:
    payload = Payload([{"text": "red boat"}, {"text": "blue"}], query={"text": "red boat"})

    reply = run(tmp_path, ranker(), payload)

    assert reply.results is not None
    assert [result["score"] for result in reply.results] == [1.0, 0.0]
    assert [result["tokens"] for result in reply.results] == [4, 3]


class CutsShort:
    """A preparer whose model wrote less than it had to say."""

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        return [[Prepared({}, cost=1, tokens=3)] for _ in payload.items]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"data": {"text": "once"}, "truncated": True}


def test_an_answer_that_was_cut_short_says_so_though_its_item_was_read_whole() -> None:
    preparer, payload = CutsShort(), Payload([{"text": "tell me"}])
    job = Job([delivery(fake_model("org/a"), "text")], arrival=0.0, expires=60.0, preparer=preparer)
    job.expect(preparer.prepare(payload), {})
    job.put(0, 0, {})

    assert job.reply("worker").results == [{"data": {"text": "once"}, "tokens": 3, "truncated": True}]
