"""What a Redis broker's leases promise: nothing is lost, nothing runs twice while its worker lives."""

import random
import signal
import time
from functools import partial

from protocol import names
from tests.service.harness import Fleet, Gateway, Worker, fake_model, wait_until

VISIBILITY_S = 1.0


def _holds_something(gateway: Gateway, worker: Worker) -> bool:
    return bool(gateway.beat(worker).get("queues"))


def test_no_request_is_lost_to_workers_killed_at_any_moment(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/steady", forward_s=0.01, max_items=8)
    redis_gateway.serve(model)
    rolls = random.Random(7)
    missing = {redis_gateway.send(model, f"text {number}") for number in range(600)}
    attempts = 0
    while missing and attempts < 12:
        attempts += 1
        worker = redis_fleet.start("short-lived", SHOAL_VISIBILITY_S=VISIBILITY_S)
        redis_gateway.wake([redis_gateway.queue(model)])
        time.sleep(rolls.uniform(0.05, 0.35))
        worker.kill()
        missing -= {reply.id for reply in redis_gateway.mail()}
    redis_fleet.start("survivor", SHOAL_VISIBILITY_S=VISIBILITY_S)
    redis_gateway.collect(missing, timeout=30)
    wait_until(lambda: redis_gateway.unacknowledged() == 0, what="everything acknowledged")


def test_a_killed_workers_requests_run_elsewhere_within_seconds(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/slow", forward_s=1.0)
    redis_gateway.serve(model)
    victim = redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    ids = [redis_gateway.send(model) for _ in range(5)]
    wait_until(lambda: redis_gateway.unacknowledged() == 5, what="all five held")
    redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    victim.kill()
    killed = time.monotonic()
    found = redis_gateway.collect(ids)
    assert time.monotonic() - killed < VISIBILITY_S * 1.5 + 3
    assert all(reply.error is None for reply in found.values())


def test_a_batch_longer_than_a_lease_runs_once(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/long", forward_s=4 * VISIBILITY_S)
    redis_gateway.serve(model)
    workers = [redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S) for _ in range(2)]
    redis_gateway.collect([redis_gateway.send(model)])
    time.sleep(1.5)  # a beat, and time for a second run to show
    assert redis_gateway.items_run(*workers) == 1


def test_a_stopped_worker_loses_its_requests_and_does_no_harm_when_it_wakes(
    redis_fleet: Fleet, redis_gateway: Gateway
) -> None:
    model = fake_model("fake/slow", forward_s=1.0)
    redis_gateway.serve(model)
    sleeper = redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    request_id = redis_gateway.send(model, store=True)
    wait_until(lambda: redis_gateway.unacknowledged() == 1, what="the request held")
    sleeper.signal(signal.SIGSTOP)
    redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    redis_gateway.collect([request_id])
    stored = redis_gateway.redis.get(names.task_result(request_id))
    sleeper.signal(signal.SIGCONT)
    redis_gateway.collect([request_id])  # its late duplicate
    assert redis_gateway.redis.get(names.task_result(request_id)) == stored
    wait_until(lambda: redis_gateway.unacknowledged() == 0, what="everything acknowledged")


def test_lost_connections_neither_repeat_nor_lose_what_runs(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/slow", forward_s=1.0)
    redis_gateway.serve(model)
    worker = redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    ids = [redis_gateway.send(model) for _ in range(20)]
    wait_until(lambda: redis_gateway.unacknowledged() == 20, what="all held")
    for kind in ("normal", "pubsub"):
        redis_gateway.redis.client_kill_filter(_type=kind, skipme=True)
    found = redis_gateway.collect(ids)
    assert all(reply.error is None for reply in found.values())
    wait_until(lambda: redis_gateway.unacknowledged() == 0, what="everything acknowledged")
    redis_gateway.collect([redis_gateway.send(model)])
    wait_until(lambda: redis_gateway.items_run(worker) == 21, what="each item run once")
    assert redis_gateway.mail() == []


def test_a_worker_takes_no_more_than_two_batches_of_cost(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/slow", forward_s=1.0, budget=10)
    redis_gateway.serve(model)
    ids = [redis_gateway.send(model, cost=5) for _ in range(12)]
    redis_fleet.start()
    wait_until(lambda: redis_gateway.unacknowledged() > 0, what="something held")
    time.sleep(0.3)
    assert redis_gateway.unacknowledged() == 4
    assert redis_gateway.redis.llen(redis_gateway.queue(model)) == 8
    redis_gateway.collect(ids)


def test_a_worker_takes_no_more_than_two_batches_of_items(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    """Of cost two batches of a model that takes few items at once would be hundreds."""
    model = fake_model("fake/few-at-once", forward_s=1.0, max_items=2)
    redis_gateway.serve(model)
    ids = [redis_gateway.send(model) for _ in range(12)]
    redis_fleet.start()
    wait_until(lambda: redis_gateway.unacknowledged() > 0, what="something held")
    time.sleep(0.3)
    assert redis_gateway.unacknowledged() == 4
    redis_gateway.collect(ids)


def test_a_request_larger_than_the_credit_is_taken_alone(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/small", budget=10)
    redis_gateway.serve(model)
    ids = [redis_gateway.send(model, cost=1000) for _ in range(3)]
    redis_fleet.start()
    redis_gateway.collect(ids)


def test_a_request_that_ended_three_workers_is_refused(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/slow", forward_s=30.0)
    redis_gateway.serve(model)
    request_id = redis_gateway.send(model)
    for _ in range(3):
        worker = redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
        redis_gateway.wake([redis_gateway.queue(model)])
        wait_until(partial(_holds_something, redis_gateway, worker), what="the request held")
        worker.kill()
        redis_gateway.redis.delete(names.worker(worker.id))
    redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    assert redis_gateway.collect([request_id])[request_id].error["code"] == "WORKER_LOST"  # type: ignore[index]


def test_a_known_result_is_not_computed_again(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/slow", forward_s=1.0)
    redis_gateway.serve(model)
    victim = redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    request_id = redis_gateway.send(model, store=True)
    wait_until(lambda: redis_gateway.unacknowledged() == 1, what="the request held")
    victim.kill()
    redis_gateway.redis.set(names.task_result(request_id), "the other worker's")
    successor = redis_fleet.start(SHOAL_VISIBILITY_S=VISIBILITY_S)
    wait_until(lambda: redis_gateway.unacknowledged() == 0, what="the duplicate acknowledged")
    time.sleep(1.2)
    assert redis_gateway.items_run(successor) == 0
    assert redis_gateway.redis.get(names.task_result(request_id)) == b"the other worker's"


def test_requests_that_nobody_announced_are_found(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/unannounced")
    redis_gateway.serve(model)
    redis_fleet.start()
    redis_gateway.collect([redis_gateway.send(model, wake=False)], timeout=15)


def test_requests_that_waited_an_hour_for_a_worker_run(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/patient")
    redis_gateway.serve(model)
    request_id = redis_gateway.send(model)
    redis_gateway.redis.zadd(names.DEMAND, {redis_gateway.queue(model): time.time() - 3600})
    redis_gateway.redis.delete(names.wake_stream("default"))
    redis_fleet.start()
    redis_gateway.collect([request_id], timeout=3)
