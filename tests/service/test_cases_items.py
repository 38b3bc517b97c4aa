"""S033: an item that fails, wherever it does, fails alone and ends no loop."""

import time

import pytest

from tests.service.harness import Fleet, Gateway, fake_model, wait_until

MODEL = fake_model("fake/failing", forward_s=0.05)
STAGES = {"preparing": "unreadable", "the forward": "boom", "finishing": "unfinished", "writing": "unwritable"}


@pytest.mark.parametrize("word", STAGES.values(), ids=STAGES.keys())
def test_one_request_that_fails_leaves_its_neighbours(redis_fleet: Fleet, redis_gateway: Gateway, word: str) -> None:
    redis_gateway.serve(MODEL)
    worker = redis_fleet.start()
    redis_gateway.collect([redis_gateway.send(MODEL, "warm")])
    texts = [f"good {place}" for place in range(20)]
    texts[10] = f"{word} mysecret"
    started = time.monotonic()

    ids = [redis_gateway.send(MODEL, text) for text in texts]
    replies = redis_gateway.collect(ids)

    assert time.monotonic() - started < 10
    errors = [replies[request_id].error for request_id in ids]
    assert [place for place, error in enumerate(errors) if error] == [10]
    assert errors[10] is not None and errors[10]["code"] == "INFERENCE_ERROR"
    assert "mysecret" not in str(errors[10]) + worker.log.read_text()
    wait_until(lambda: redis_gateway.beat(worker).get("queues") == {}, what="a queue that is empty")
    redis_gateway.collect([redis_gateway.send(MODEL, "healthy afterwards")])
    assert worker.process.poll() is None
