"""A crowd of waiting clients on virtual time, and what it could get at most."""

import itertools
from pathlib import Path

import pytest

from bench import crowd
from bench.sim.closed import Crowd
from workers.config import WorkerConfig

LOADS_AT_ONCE = WorkerConfig("", Path()).loads_at_once


@pytest.mark.parametrize(("traffic", "weights"), [("cyclic", crowd.EVEN), ("zipf", crowd.ZIPF)])
def test_a_crowd_gets_most_of_what_any_policy_could_give_it(traffic: str, weights: list[float]) -> None:
    asked = itertools.cycle(model for model, _ in getattr(crowd.Traffic, traffic)().asked)
    rate = Crowd(asked, crowd.ROOM).run(60.0)
    possible = crowd.most_possible(weights, LOADS_AT_ONCE)
    assert 0.7 * possible < rate <= possible


@pytest.mark.parametrize(("traffic", "share"), [("cyclic", 0.5), ("zipf", 0.8)])
def test_what_waits_in_the_hosts_memory_costs_the_crowd_little(traffic: str, share: float) -> None:
    order = [model for model, _ in getattr(crowd.Traffic, traffic)().asked]
    whole = Crowd(itertools.cycle(order), crowd.MODELS).run(60.0)
    part = Crowd(itertools.cycle(order), crowd.ROOM, crowd.HOST)
    assert part.run(60.0) > share * whole
    assert part.loads == crowd.MODELS


def test_with_room_for_all_each_model_is_loaded_once() -> None:
    whole = Crowd(itertools.cycle(range(crowd.MODELS)), crowd.MODELS)
    whole.run(30.0)
    assert whole.loads == crowd.MODELS


def test_nobody_in_the_crowd_waits_much_longer_than_all_models_take_to_load() -> None:
    part = Crowd(itertools.cycle(range(crowd.MODELS)), crowd.ROOM)
    part.run(60.0)
    assert part.longest_s < 1.1 * crowd.MODELS * crowd.LOAD_S / LOADS_AT_ONCE
