"""A batch size lowered by an out-of-memory, over a restart of the worker."""

from typing import Any

from tests.service.harness import Fleet, Gateway, Worker, fake_model, wait_until


def status(gateway: Gateway, worker: Worker) -> dict[str, Any]:
    models = gateway.beat(worker).get("models", [])
    return models[0] if models else {}


def test_a_worker_that_starts_again_knows_what_did_not_fit(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("org/a", load_s=0.5, memory_cost=4)
    redis_gateway.serve(model)
    first = redis_fleet.start()
    redis_gateway.collect([redis_gateway.send(model, f"w{number}") for number in range(16)])
    ceiling = wait_until(lambda: status(redis_gateway, first).get("ceiling"), what="a lowered ceiling")
    assert redis_gateway.beat(first)["counters"]["retries"] > 0
    assert first.stop() == 0
    second = redis_fleet.start()
    redis_gateway.collect([redis_gateway.send(model, f"w{number}") for number in range(16)])
    wait_until(lambda: status(redis_gateway, second).get("ceiling") == ceiling, what="the same ceiling")
    assert redis_gateway.beat(second)["counters"]["retries"] == 0
