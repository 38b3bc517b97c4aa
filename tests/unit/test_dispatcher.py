"""The dispatcher with real engine processes and the fake family; no broker, no torch."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from catalog.snapshot import Model
from tests.unit.workers_doubles import RecordingOutbox, Start, delivery, fake_model
from workers.deliveries import Delivery
from workers.dispatcher import Dispatcher
from workers.families.fake import vector


def until(claim: Callable[[], bool], timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not claim():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)


def submit(dispatcher: Dispatcher, *deliveries: Any) -> list[str]:
    for item in deliveries:
        dispatcher.submit(item)
    return [item.request.id for item in deliveries]


def model_status(dispatcher: Dispatcher, name: str) -> dict[str, Any]:
    return next((m for m in dispatcher.status()["models"] if m["model"] == name), {})


def test_a_cold_model_loads_and_answers_every_item_in_order(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=0.2)
    dispatcher = start(model)
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(model, "one", "two words", "three")))
    assert reply.error is None and reply.results is not None
    for result, text in zip(reply.results, ["one", "two words", "three"], strict=True):
        assert np.array_equal(result["dense"]["values"], vector(text, 8))
    assert [result["tokens"] for result in reply.results] == [1, 2, 1]


def test_replies_are_never_swapped_between_requests(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", forward_s=0.005)
    dispatcher = start(model, budget=16)
    texts = [f"text {number} " + "word " * (number % 9) for number in range(200)]
    replies = outbox.wait_for(submit(dispatcher, *(delivery(model, text) for text in texts)))
    for reply, text in zip(replies, texts, strict=True):
        assert reply.results is not None
        assert np.array_equal(reply.results[0]["dense"]["values"], vector(text, 8))
    assert dispatcher.status()["counters"]["forwards"] < 200


def test_no_forward_exceeds_the_item_or_cost_limit(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", budget=8000, max_items=64)
    dispatcher = start(model)
    text = "word " * 50
    outbox.wait_for(submit(dispatcher, *(delivery(model, *[text] * 32) for _ in range(10))))
    until(lambda: dispatcher.status()["counters"]["items"] == 320)
    largest = model_status(dispatcher, "org/a")["largest_batch"]
    assert largest["items"] == 64
    assert largest["cost"] <= 8000


def test_an_item_larger_than_the_budget_runs_alone(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", budget=1000)
    dispatcher = start(model)
    long, short = delivery(model, "word " * 1500), delivery(model, "word " * 10)
    replies = outbox.wait_for(submit(dispatcher, long, short))
    assert all(reply.error is None for reply in replies)


def test_one_broken_item_fails_alone(start: Start, outbox: RecordingOutbox) -> None:
    """S033, S034: and nobody's text is in its error."""
    model = fake_model("org/a", load_s=0.3)
    dispatcher = start(model)
    texts = ["good"] * 7 + ["boom"] + ["good"] * 8
    replies = outbox.wait_for(submit(dispatcher, *(delivery(model, text) for text in texts)))
    failed = [index for index, reply in enumerate(replies) if reply.error]
    assert failed == [7]
    assert replies[7].error is not None and replies[7].error["code"] == "INFERENCE_ERROR"
    assert "boom" not in replies[7].error["message"]


def test_an_item_that_kills_the_engine_fails_alone(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=0.2)
    dispatcher = start(model)
    texts = ["good", "fine", "segfault", "well"]
    replies = outbox.wait_for(submit(dispatcher, *(delivery(model, text) for text in texts)), timeout=60)
    assert [reply.error["code"] if reply.error else None for reply in replies] == [None, None, "WORKER_LOST", None]


def test_work_survives_a_killed_engine(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", forward_s=0.3)
    dispatcher = start(model)
    outbox.wait_for(submit(dispatcher, delivery(model, "warm")))
    until(lambda: bool(dispatcher.status()["engines"]))
    ids = submit(dispatcher, delivery(model, "in flight"))
    until(lambda: len(outbox.started_ids) == 2)
    os.kill(dispatcher.status()["engines"][0]["pid"], signal.SIGKILL)
    (reply,) = outbox.wait_for(ids)
    assert reply.error is None
    until(lambda: dispatcher.status()["counters"]["engine_restarts"] == 1)


def test_a_batch_too_large_for_memory_is_split_and_the_budget_stays_lower(
    start: Start, outbox: RecordingOutbox
) -> None:
    model = fake_model("org/a", load_s=0.2, memory_cost=4)
    dispatcher = start(model)
    replies = outbox.wait_for(submit(dispatcher, *(delivery(model, f"w{number}") for number in range(16))))
    assert all(reply.error is None for reply in replies)
    until(lambda: dispatcher.budget("org/a") <= 8)
    (alone,) = outbox.wait_for(submit(dispatcher, delivery(model, "a b c d e f")))
    assert alone.error is not None and alone.error["code"] == "RESOURCE_EXHAUSTED"


def test_two_models_share_a_budget_that_fits_one(start: Start, outbox: RecordingOutbox) -> None:
    first, second = fake_model("org/a", bytes=60), fake_model("org/b", bytes=60)
    dispatcher = start(first, second, memory_bytes=100, quantum_s=0.05)
    for _ in range(3):
        for model in (first, second):
            (reply,) = outbox.wait_for(submit(dispatcher, delivery(model, "hello")))
            assert reply.error is None
    until(lambda: dispatcher.status()["counters"]["evictions"] >= 5)
    until(lambda: dispatcher.status()["memory"] == {"capacity": 100, "used": 60})


def test_under_saturation_the_other_model_still_gets_its_turn(start: Start, outbox: RecordingOutbox) -> None:
    first, second = fake_model("org/a", bytes=60, forward_s=0.01), fake_model("org/b", bytes=60)
    dispatcher = start(first, second, memory_bytes=100, quantum_s=0.2, budget=1)
    flood = submit(dispatcher, *(delivery(first, f"w{number}") for number in range(150)))
    time.sleep(0.1)
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(second, "hello")))
    assert reply.error is None
    assert all(reply.error is None for reply in outbox.wait_for(flood))


def test_the_beat_tells_the_rate_in_the_cost_that_gateways_estimate(start: Start, outbox: RecordingOutbox) -> None:
    """Four items a forward, and each is two words where its gateway took it for one: no more than 80 a second."""
    model = fake_model("org/a", forward_s=0.05, max_items=4)
    dispatcher = start(model)
    outbox.wait_for(submit(dispatcher, delivery(model, "two words")))
    began = time.monotonic()
    outbox.wait_for(submit(dispatcher, *(delivery(model, "two words") for _ in range(60))))
    seen = 60 / (time.monotonic() - began)
    until(lambda: bool(model_status(dispatcher, "org/a")["rate"]))
    assert 0.5 * seen < model_status(dispatcher, "org/a")["rate"] <= 4 / 0.05


def test_the_beat_tells_since_when_work_waits_by_lane(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=1.5)
    dispatcher = start(model)
    first, *_ = deliveries = [delivery(model, "a", lane="bulk"), delivery(model, "b", lane="bulk")]
    submit(dispatcher, *deliveries)
    until(lambda: bool(model_status(dispatcher, "org/a").get("oldest")))
    assert model_status(dispatcher, "org/a")["oldest"] == {"bulk": first.request.published}


def test_a_key_that_floods_keeps_no_other_key_waiting(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", forward_s=0.02)
    dispatcher = start(model, budget=2)
    flood = submit(dispatcher, *(delivery(model, f"w{number}", key="flood") for number in range(100)))
    outbox.wait_for(flood[:4])
    outbox.wait_for(submit(dispatcher, delivery(model, "hello", key="other")))
    assert len(outbox.replies) < 50


def test_a_model_larger_than_the_device_is_refused_and_evicts_nobody(start: Start, outbox: RecordingOutbox) -> None:
    small, large = fake_model("org/a", bytes=60), fake_model("org/big", bytes=200)
    dispatcher = start(small, large, memory_bytes=100)
    outbox.wait_for(submit(dispatcher, delivery(small, "hello")))
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(large, "hello")))
    assert reply.error is not None
    assert (reply.error["code"], reply.error["error_class"]) == ("MODEL_LOAD_FAILED", "TOO_LARGE")
    assert dispatcher.status()["counters"]["evictions"] == 0


def test_simultaneous_first_requests_cause_one_load(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=0.3)
    dispatcher = start(model)
    outbox.wait_for(submit(dispatcher, *(delivery(model, f"w{number}") for number in range(20))))
    until(lambda: dispatcher.status()["counters"]["loads"] == 1)


def test_a_slow_load_does_not_hold_up_another_model(start: Start, outbox: RecordingOutbox) -> None:
    slow, quick = fake_model("org/slow", load_s=5.0), fake_model("org/quick")
    dispatcher = start(slow, quick)
    submit(dispatcher, delivery(slow, "later"))
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(quick, "now")), timeout=4.0)
    assert reply.error is None


def test_a_failed_load_answers_everyone_and_cools_down(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_error="bad weights in /secret/place")
    dispatcher = start(model)
    replies = outbox.wait_for(submit(dispatcher, *(delivery(model, "hello") for _ in range(3))))
    replies += outbox.wait_for(submit(dispatcher, delivery(model, "again")))
    assert {reply.error["code"] for reply in replies if reply.error} == {"MODEL_LOAD_FAILED"}
    assert "secret" not in str(replies)
    until(lambda: dispatcher.status()["counters"]["load_failures"] == 1)


def test_expired_entries_never_run(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=1.0)
    dispatcher = start(model)
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(model, "late", timeout_s=0.3)))
    assert reply.error is not None and reply.error["code"] == "EXPIRED"
    assert outbox.started_ids == []


SLOW = "word " * 10  # a second of the models below


@pytest.fixture
def paced(start: Start, outbox: RecordingOutbox) -> tuple[Dispatcher, Model]:
    """A worker with a loaded model that takes a tenth of a second for each word, one item at a time."""
    model = fake_model("org/paced", s_per_cost=0.1, max_items=1)
    dispatcher = start(model)
    outbox.wait_for(submit(dispatcher, delivery(model, "warm")))
    return dispatcher, model


def awaited(model: Model, text: str, timeout_s: float, **changes: Any) -> Delivery:
    """A call that somebody waits for."""
    one = delivery(model, text, timeout_s=timeout_s)
    one.request = dataclasses.replace(one.request, **{"reply": "mailbox", **changes})
    return one


def test_a_call_that_is_late_on_the_device_goes_on(paced: tuple[Dispatcher, Model], outbox: RecordingOutbox) -> None:
    dispatcher, model = paced
    (reply,) = outbox.wait_for(ids := submit(dispatcher, awaited(model, SLOW, timeout_s=0.6)))
    assert reply.error is None
    assert outbox.kept == ids


def test_a_call_that_is_late_in_the_queue_is_dropped(paced: tuple[Dispatcher, Model], outbox: RecordingOutbox) -> None:
    dispatcher, model = paced
    ids = submit(dispatcher, delivery(model, SLOW), awaited(model, "behind", timeout_s=0.4))
    replies = outbox.wait_for(ids)
    assert replies[1].error is not None and replies[1].error["code"] == "EXPIRED"
    assert outbox.kept == []


def test_a_late_call_goes_on_for_as_long_again_at_most(
    paced: tuple[Dispatcher, Model], outbox: RecordingOutbox
) -> None:
    dispatcher, model = paced
    (reply,) = outbox.wait_for(ids := submit(dispatcher, awaited(model, SLOW * 3, timeout_s=0.5)))
    assert reply.error is not None and reply.error["code"] == "EXPIRED"
    assert outbox.kept == ids


def test_a_task_that_is_late_on_the_device_has_expired(
    paced: tuple[Dispatcher, Model], outbox: RecordingOutbox
) -> None:
    dispatcher, model = paced
    (reply,) = outbox.wait_for(submit(dispatcher, awaited(model, SLOW, timeout_s=0.5, reply=None, store=True)))
    assert reply.error is not None and reply.error["code"] == "EXPIRED"


def test_cancelled_entries_never_run(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=0.5)
    dispatcher = start(model)
    kept, dropped = submit(dispatcher, delivery(model, "kept"), delivery(model, "dropped"))
    dispatcher.cancel(dropped)
    replies = outbox.wait_for([kept, dropped])
    assert replies[0].error is None
    assert replies[1].error is not None and replies[1].error["code"] == "CANCELLED"
    assert outbox.started_ids == [kept]


def test_vectors_that_are_not_finite_are_refused(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=0.2)
    dispatcher = start(model)
    replies = outbox.wait_for(submit(dispatcher, *(delivery(model, text) for text in ("fine", "zzznan", "fine too"))))
    assert [reply.error["code"] if reply.error else None for reply in replies] == [None, "NON_FINITE_OUTPUT", None]


def test_a_hung_forward_is_ended_and_its_mates_are_answered(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a")
    dispatcher = start(model, hang_s=0.5)
    replies = outbox.wait_for(submit(dispatcher, delivery(model, "hang"), delivery(model, "good")), timeout=60)
    assert replies[0].error is not None and replies[0].error["code"] == "WORKER_LOST"
    assert replies[1].error is None


def test_pinned_models_load_unasked_and_stay(start: Start, outbox: RecordingOutbox) -> None:
    pinned, other = fake_model("org/p", bytes=60, pinned=True), fake_model("org/b", bytes=60)
    dispatcher = start(pinned, other, memory_bytes=100)
    until(lambda: model_status(dispatcher, "org/p").get("state") == "loaded")
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(other, "hello")))
    assert reply.error is not None and reply.error["error_class"] == "TOO_LARGE"


def test_draining_finishes_the_device_and_returns_the_rest(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", forward_s=0.5)
    dispatcher = start(model, budget=1)
    outbox.wait_for(submit(dispatcher, delivery(model, "warm")))
    flying, queued = submit(dispatcher, delivery(model, "flying"), delivery(model, "queued"))
    until(lambda: flying in outbox.started_ids)
    dispatcher.drain(5.0)
    assert outbox.returned == [queued]
    assert outbox.wait_for([flying])[0].error is None
    assert not dispatcher.alive


def test_the_same_request_delivered_twice_runs_once_and_settles_both(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", load_s=0.3)
    dispatcher = start(model)
    first = delivery(model, "hello")
    again = type(first)(first.request, first.load, redelivered=True)
    submit(dispatcher, first, again)
    until(lambda: len(outbox.replies) == 2)
    assert outbox.started_ids == [first.request.id]


def test_a_request_for_a_model_the_catalog_lacks_is_refused(
    start: Start, outbox: RecordingOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.requests.UNKNOWN_GRACE_S", 0.3)
    dispatcher = start(fake_model("org/a"))
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(fake_model("org/gone"), "hello")))
    assert reply.error is not None and reply.error["code"] == "MODEL_NOT_FOUND"


def test_a_model_larger_than_thought_gets_a_second_try_with_more_room(start: Start, outbox: RecordingOutbox) -> None:
    idle, swelling = fake_model("org/a", bytes=60), fake_model("org/b", bytes=30, oom_loads=1)
    dispatcher = start(idle, swelling, memory_bytes=100)
    outbox.wait_for(submit(dispatcher, delivery(idle, "hello")))
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(swelling, "hello")))
    assert reply.error is None
    until(lambda: dispatcher.status()["counters"]["evictions"] == 1)


def test_a_model_that_came_out_larger_pushes_another_out_at_once(start: Start, outbox: RecordingOutbox) -> None:
    idle, swollen = fake_model("org/a", bytes=60), fake_model("org/b", bytes=70, estimate=30)
    dispatcher = start(idle, swollen, memory_bytes=100)
    outbox.wait_for(submit(dispatcher, delivery(idle, "hello")))
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(swollen, "hello")))
    assert reply.error is None
    until(lambda: dispatcher.status()["memory"]["used"] == 70)
    assert dispatcher.status()["counters"]["evictions"] == 1


def test_an_idle_neighbour_leaves_when_a_forward_runs_out_of_memory(start: Start, outbox: RecordingOutbox) -> None:
    """Once: further items that never fit must not empty the device."""
    idle, other, greedy = fake_model("org/a"), fake_model("org/b"), fake_model("org/c")
    dispatcher = start(idle, other, greedy)
    outbox.wait_for(submit(dispatcher, *(delivery(model, "hello") for model in (idle, other, greedy))))
    for _ in range(2):
        (reply,) = outbox.wait_for(submit(dispatcher, delivery(greedy, "oom")))
        assert reply.error is not None and reply.error["code"] == "RESOURCE_EXHAUSTED"
    states = ("org/a", "org/b"), ["absent", "loaded"]
    until(lambda: sorted(model_status(dispatcher, name).get("state", "") for name in states[0]) == states[1])
    assert dispatcher.status()["counters"]["evictions"] == 1


def test_a_model_nobody_uses_leaves_the_device(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a")
    dispatcher = start(model, idle_unload_s=0.5)
    outbox.wait_for(submit(dispatcher, delivery(model, "hello")))
    until(lambda: model_status(dispatcher, "org/a").get("state") == "absent")
    assert outbox.wait_for(submit(dispatcher, delivery(model, "again")))[0].error is None


def test_the_beat_names_who_would_leave_first(start: Start, outbox: RecordingOutbox) -> None:
    first, second = fake_model("org/a"), fake_model("org/b")
    dispatcher = start(first, second)
    for model in (first, second, first):
        outbox.wait_for(submit(dispatcher, delivery(model, "hello")))
    until(lambda: dispatcher.status()["leaving_order"] == ["org/b", "org/a"])


def test_time_spent_at_the_broker_counts_as_queued(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a")
    dispatcher = start(model)
    late = delivery(model, "hello")
    late.request = dataclasses.replace(late.request, published=late.request.published - 3.0)
    (reply,) = outbox.wait_for(submit(dispatcher, late))
    assert reply.timing["queue"] >= 3000


def test_a_family_that_fails_knowingly_tells_callers_why(start: Start, outbox: RecordingOutbox) -> None:
    model = fake_model("org/a", unsupported="its head has three ears")
    dispatcher = start(model)
    (reply,) = outbox.wait_for(submit(dispatcher, delivery(model, "hello")))
    assert reply.error is not None
    assert (reply.error["code"], reply.error["message"]) == ("MODEL_LOAD_FAILED", "its head has three ears")
