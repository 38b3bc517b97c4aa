"""SIGTERM: what is on the device is finished and answered, the rest is there for others, and it does not take long."""

import time

import pytest

from protocol import names
from tests.service.harness import Fleet, Gateway, Worker, fake_model, wait_until


def _held(gateway: Gateway, worker: Worker) -> int:
    return sum(queue["items"] for queue in gateway.beat(worker).get("queues", {}).values())


def test_what_is_on_the_device_is_answered(fleet: Fleet, gateway: Gateway) -> None:
    model = fake_model("fake/slow", forward_s=2.0)
    gateway.serve(model)
    worker = fleet.start()
    request_id = gateway.send(model)
    wait_until(lambda: _held(gateway, worker) == 1, what="the request held")
    started = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - started < 5
    assert gateway.collect([request_id], timeout=1)[request_id].error is None


def test_what_has_not_started_goes_to_another_worker_and_runs_once(fleet: Fleet, gateway: Gateway) -> None:
    model = fake_model("fake/slow", forward_s=1.0, max_items=3)
    gateway.serve(model)
    worker = fleet.start()
    ids = [gateway.send(model, f"text {number}") for number in range(6)]
    wait_until(lambda: _held(gateway, worker) == 6, what="all held")
    worker.stop()
    successor = fleet.start()
    gateway.wake([gateway.queue(model)])
    found = gateway.collect(ids)
    assert all(reply.error is None for reply in found.values())
    wait_until(lambda: gateway.items_run(successor) >= 3, what="a beat")
    assert gateway.mail() == []


def test_an_endless_batch_does_not_hold_up_the_end(fleet: Fleet, gateway: Gateway) -> None:
    model = fake_model("fake/endless", forward_s=60.0)
    gateway.serve(model)
    worker = fleet.start(SHOAL_DRAIN_S=1)
    gateway.send(model)
    wait_until(lambda: _held(gateway, worker) == 1, what="the request held")
    started = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - started < 10


def test_a_worker_that_leaves_says_so(fleet: Fleet, gateway: Gateway) -> None:
    worker = fleet.start()
    wait_until(lambda: gateway.beat(worker), what="a beat")
    worker.stop()
    assert gateway.beat(worker) == {}
    assert gateway.redis.zscore(names.WORKERS, worker.id) is None


@pytest.mark.parametrize("count", [40])
def test_many_short_batches_run_exactly_once_across_a_restart(fleet: Fleet, gateway: Gateway, count: int) -> None:
    model = fake_model("fake/short", forward_s=0.02, max_items=2)
    gateway.serve(model)
    worker = fleet.start()
    ids = [gateway.send(model, f"text {number}") for number in range(count)]
    wait_until(lambda: gateway.redis.llen(gateway.mailbox) > 2, what="the first replies")
    worker.stop()
    fleet.start()
    gateway.wake([gateway.queue(model)])
    gateway.collect(ids)
    time.sleep(0.5)
    assert gateway.mail() == []
