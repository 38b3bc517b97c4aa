"""A device worker on either broker, as gateways and plain Celery clients meet it."""

import time
from typing import Any

import numpy as np
import pytest

from protocol import names
from tests.service.harness import Fleet, Gateway, Services, fake_model, plain_client, wait_until
from workers.families.fake import vector

MODEL = fake_model("fake/echo")


@pytest.fixture(autouse=True)
def catalog(gateway: Gateway) -> None:
    gateway.serve(MODEL)


def test_every_reply_is_its_own(fleet: Fleet, gateway: Gateway) -> None:
    fleet.start()
    texts = {gateway.send(MODEL, f"text {number}"): f"text {number}" for number in range(200)}
    found = gateway.collect(texts)
    wrong = [
        request_id
        for request_id, text in texts.items()
        if not np.allclose(found[request_id].results[0]["dense"]["values"], vector(text, 8))  # type: ignore[index]
    ]
    assert wrong == []


def test_nothing_stays_unacknowledged(fleet: Fleet, gateway: Gateway) -> None:
    worker = fleet.start()
    gateway.collect([gateway.send(MODEL) for _ in range(50)])
    wait_until(lambda: gateway.beat(worker).get("queues") == {}, what="an empty beat")


def test_a_plain_client_gets_the_native_body(fleet: Fleet, services: Services) -> None:
    fleet.start()
    arguments = {"model": "fake/echo", "items": [{"id": "a", "text": "hi"}], "options": {}}
    result = plain_client(services).send_task("shoal.encode", kwargs=arguments, queue="shoal").get(timeout=20)
    assert result["model"] == "fake/echo"
    assert result["items"][0]["id"] == "a"
    assert np.allclose(result["items"][0]["dense"]["values"], vector("hi", 8))


def test_a_plain_clients_task_is_counted_as_published(fleet: Fleet, gateway: Gateway, services: Services) -> None:
    fleet.start()
    arguments = {"model": "fake/echo", "items": ["hi", "ho"]}
    plain_client(services).send_task("shoal.encode", kwargs=arguments, queue="shoal").get(timeout=20)
    counts = gateway.redis.hgetall(names.published(gateway.queue(MODEL)))
    assert counts == {b"messages": b"1", b"items": b"2", b"cost": b"4"}


@pytest.mark.parametrize(
    ("task", "arguments", "code", "said"),
    [
        ("shoal.encode", {"model": "fake/ech0", "items": ["hi"]}, "MODEL_NOT_FOUND", "did you mean fake/echo"),
        ("shoal.encode", {"model": "fake/echo", "items": []}, "INVALID_INPUT", "items"),
        ("shoal.encode", {"model": "fake/echo", "items": ["hi"], "options": {"dtype": 1}}, "INVALID_INPUT", "dtype"),
        ("shoal.encode", {"model": "fake/echo", "items": ["hi"], "labels": []}, "INVALID_INPUT", "labels"),
        ("shoal.score", {"model": "fake/echo", "items": ["hi"]}, "INVALID_INPUT", "does not score"),
        ("shoal.paint", {"model": "fake/echo", "items": ["hi"]}, "INVALID_INPUT", "no task 'shoal.paint'"),
    ],
)
def test_a_plain_clients_mistake_fails_its_task(
    fleet: Fleet, services: Services, task: str, arguments: dict[str, Any], code: str, said: str
) -> None:
    fleet.start()
    result = plain_client(services).send_task(task, kwargs=arguments, queue="shoal")
    with pytest.raises(Exception, match=said) as raised:
        result.get(timeout=20)
    assert type(raised.value).__name__ == code


def test_eta_is_refused(fleet: Fleet, services: Services) -> None:
    fleet.start()
    arguments = {"model": "fake/echo", "items": ["hi"]}
    result = plain_client(services).send_task("shoal.encode", kwargs=arguments, queue="shoal", countdown=60)
    with pytest.raises(Exception, match="eta and countdown"):
        result.get(timeout=20)


def test_a_priority_of_a_plain_client_loses_nothing(fleet: Fleet, services: Services) -> None:
    fleet.start()
    arguments = {"model": "fake/echo", "items": ["hi"]}
    result = plain_client(services).send_task("shoal.encode", kwargs=arguments, queue="shoal", priority=7)
    assert result.get(timeout=20)["model"] == "fake/echo"


def test_a_stored_request_is_running_and_then_has_its_result(fleet: Fleet, gateway: Gateway) -> None:
    slow = fake_model("fake/slow", forward_s=1.0)
    gateway.serve(slow)
    fleet.start()
    request_id = gateway.send(slow, store=True, reply=None, id="task-1")
    gateway.redis.hset(names.task(request_id), "state", "queued")
    wait_until(lambda: gateway.redis.hget(names.task(request_id), "state") == b"running", what="state running")
    assert gateway.redis.get(names.task_result(request_id)) is None
    wait_until(lambda: gateway.redis.get(names.task_result(request_id)), what="a stored result")
    assert gateway.redis.ttl(names.task_result(request_id)) > 3500


def test_a_digest_nobody_knows_is_an_error(fleet: Fleet, gateway: Gateway) -> None:
    fleet.start()
    request_id = gateway.send(MODEL, digest="0" * 16)
    assert gateway.collect([request_id])[request_id].error["code"] == "MODEL_NOT_FOUND"  # type: ignore[index]


def test_a_new_queue_is_served_within_a_tenth_of_a_second(fleet: Fleet, gateway: Gateway) -> None:
    """The best of several, because loading on a busy machine may take longer than all else."""
    models = [fake_model(f"fake/new{number}") for number in range(5)]
    gateway.serve(MODEL, *models)
    fleet.start()
    gateway.collect([gateway.send(MODEL)])
    waits = []
    for model in models:
        started = time.monotonic()
        gateway.collect([gateway.send(model)])
        waits.append(time.monotonic() - started)
    assert min(waits) < 0.1


def test_a_cancelled_request_does_not_run(fleet: Fleet, gateway: Gateway) -> None:
    slow = fake_model("fake/slow", forward_s=1.0, max_items=1)
    gateway.serve(slow)
    worker = fleet.start()
    running = gateway.send(slow, "first")
    wait_until(lambda: gateway.beat(worker).get("queues"), what="the first request held")
    waiting = gateway.send(slow, "second")
    time.sleep(0.2)
    gateway.cancel(waiting)
    found = gateway.collect([running, waiting])
    assert found[waiting].error["code"] == "CANCELLED"  # type: ignore[index]
    assert found[running].error is None


def test_a_cancel_from_before_the_worker_started_holds(fleet: Fleet, gateway: Gateway) -> None:
    request_id = gateway.send(MODEL)
    gateway.cancel(request_id)
    fleet.start()
    assert gateway.collect([request_id])[request_id].error["code"] == "CANCELLED"  # type: ignore[index]


def test_a_request_past_its_deadline_does_not_run(fleet: Fleet, gateway: Gateway) -> None:
    request_id = gateway.send(MODEL, deadline=time.time() - 1)
    worker = fleet.start()
    assert gateway.collect([request_id])[request_id].error["code"] == "EXPIRED"  # type: ignore[index]
    assert gateway.items_run(worker) == 0


def test_a_redelivered_duplicate_has_one_visible_result(fleet: Fleet, gateway: Gateway) -> None:
    fleet.start()
    first = gateway.send(MODEL, "one", id="twice", store=True)
    gateway.collect([first])
    stored = gateway.redis.get(names.task_result("twice"))
    gateway.collect([gateway.send(MODEL, "another", id="twice", store=True)])
    assert gateway.redis.get(names.task_result("twice")) == stored
