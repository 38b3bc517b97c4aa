"""Workers that share models without a router: who has a model takes its work, and others only what that one leaves."""

import time
from collections import Counter

from tests.service.harness import Fleet, Gateway, Worker, fake_model, wait_until

MIB = 1 << 20


def loads(gateway: Gateway, *workers: Worker) -> int:
    return sum(gateway.beat(worker).get("counters", {}).get("loads", 0) for worker in workers)


def shares(gateway: Gateway, *workers: Worker) -> Counter[str]:
    """Items run by each, as their beats say."""
    return Counter({worker.id: gateway.items_run(worker) for worker in workers})


def next_beats() -> None:
    time.sleep(1.6)


def test_a_model_that_one_worker_has_is_not_loaded_by_another_while_that_one_keeps_up(
    fleet: Fleet, gateway: Gateway
) -> None:
    models = [fake_model(f"fake/kept-{number}", load_s=0.2, forward_s=0.005) for number in range(6)]
    gateway.serve(*models)
    workers = [fleet.start() for _ in range(2)]
    ids = [gateway.send(model) for model in models]
    gateway.collect(ids)
    next_beats()
    for _ in range(30):
        ids = [gateway.send(model) for model in models]
        time.sleep(0.1)
    gateway.collect(ids)
    next_beats()
    assert loads(gateway, *workers) == len(models)
    assert gateway.items_run(*workers) == 31 * len(models)


def test_work_that_one_worker_cannot_keep_up_with_is_spread(fleet: Fleet, gateway: Gateway) -> None:
    model = fake_model("fake/spread", load_s=0.2, forward_s=0.1, max_items=1)
    gateway.serve(model)
    workers = [fleet.start() for _ in range(2)]
    gateway.collect([gateway.send(model) for _ in range(3)])
    next_beats()
    before, sent = shares(gateway, *workers), time.monotonic()
    gateway.collect([gateway.send(model, cost=500) for _ in range(100)], timeout=60)
    took = time.monotonic() - sent
    next_beats()
    ran = shares(gateway, *workers) - before
    assert len(ran) == 2, ran
    assert min(ran.values()) > 20, (ran, took)


def test_nothing_starves_where_models_push_each_other_out(fleet: Fleet, gateway: Gateway) -> None:
    models = [
        fake_model(f"fake/crowd-{number}", load_s=0.1, forward_s=0.01, bytes=100 * MIB, estimate=100 * MIB)
        for number in range(10)
    ]
    gateway.serve(*models)
    workers = [fleet.start(SHOAL_MEMORY_BYTES="350M") for _ in range(2)]
    ids = [
        gateway.send(model, lane=lane)
        for _ in range(5)
        for model in models
        for lane in ("interactive", "interactive", "bulk")
    ]
    found = gateway.collect(ids, timeout=60)
    assert [reply.error for reply in found.values() if reply.error] == []
    wait_until(lambda: gateway.items_run(*workers) == len(ids), what="each item run once")


def test_a_lone_worker_takes_at_once_what_it_does_not_have(fleet: Fleet, gateway: Gateway) -> None:
    models = [fake_model(f"fake/lone-{number}") for number in range(3)]
    gateway.serve(*models)
    fleet.start()
    gateway.collect([gateway.send(models[0])])
    took = []
    for model in models[1:]:
        sent = time.monotonic()
        gateway.collect([gateway.send(model)])
        took.append(time.monotonic() - sent)
    assert min(took) < 0.15, took


def test_ten_quick_requests_do_not_wait_behind_a_long_one(fleet: Fleet, gateway: Gateway) -> None:
    """S080: whoever has the long one in hand takes no more, and gives back what it took along."""
    model = fake_model("fake/long-and-quick", s_per_cost=0.002, budget=100)
    gateway.serve(model)
    for _ in range(2):
        fleet.start()
    for _ in range(5):
        gateway.collect([gateway.send(model, "word " * 50, cost=50) for _ in range(10)])
    gateway.send(model, "word " * 30_000, cost=30_000)
    sent = time.monotonic()
    gateway.collect([gateway.send(model, "word " * 50, cost=50) for _ in range(10)], timeout=10)
    assert time.monotonic() - sent < 3
