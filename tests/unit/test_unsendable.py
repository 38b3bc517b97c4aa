"""What cannot be told to an engine fails where it came from, and the dispatcher lives."""

from dataclasses import replace

import pytest

from catalog.snapshot import Model
from tests.unit.workers_doubles import RecordingOutbox, Start, delivery, fake_model
from workers.dispatcher import Dispatcher

GOOD = fake_model("org/good")


UNSENDABLE = [
    replace(GOOD, spec=replace(GOOD.spec, model="org/wide", dims={"dense": 2**70})),
    fake_model("org/surrogate", word="\ud800"),
    replace(GOOD, spec=replace(GOOD.spec, model="org/strange", family="nope")),
]


@pytest.fixture
def dispatcher(start: Start) -> Dispatcher:
    return start(GOOD, *UNSENDABLE)


@pytest.mark.parametrize("model", UNSENDABLE, ids=lambda model: model.spec.model)
def test_a_model_that_no_engine_can_be_told_of_fails_alone(
    dispatcher: Dispatcher, outbox: RecordingOutbox, model: Model
) -> None:
    requests = [delivery(model, "for it"), delivery(GOOD, "for another")]
    for request in requests:
        dispatcher.submit(request)
    broken, good = outbox.wait_for([request.request.id for request in requests])
    assert broken.error is not None and broken.error["code"] == "MODEL_LOAD_FAILED"
    assert good.error is None
    assert dispatcher.alive
    assert set(dispatcher.evictions.ledger.held) == {GOOD.spec.digest}


def test_an_item_that_no_engine_can_be_told_fails_alone(dispatcher: Dispatcher, outbox: RecordingOutbox) -> None:
    """S030: should half a surrogate pair ever get past a gateway."""
    requests = [delivery(GOOD, text) for text in ("one", "half \ud83d a pair", "two")]
    for request in requests:
        dispatcher.submit(request)
    replies = outbox.wait_for([request.request.id for request in requests])
    assert [reply.error["code"] if reply.error else None for reply in replies] == [None, "INFERENCE_ERROR", None]
    assert dispatcher.alive
