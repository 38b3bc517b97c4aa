"""Short simulations: deterministic, everything answered, the dispatcher's promises on virtual time."""

import logging
from dataclasses import replace

import pytest

from bench.sim.figures import figures
from bench.sim.fleet import GIB, Card
from bench.sim.traces import TRACES
from bench.sim.world import SHOAL, Outcome, Policy, Scenario, router, simulate
from workers.dispatcher import TICK_S

SHORT = Scenario(models=12, devices=2, level=0.8, seconds=6.0, warm_s=2.0, card=Card(memory_bytes=6 * GIB))
POLICIES = [SHOAL, router("two choices", 0.05), router("shortest", 0.05), router("plain", 0.05)]


def held_bytes(outcome: Outcome) -> list[int]:
    return [worker.dispatcher.evictions.memory()["used"] for worker in outcome.workers]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
def test_the_same_seed_gives_the_same_figures(policy: Policy) -> None:
    assert figures(simulate(SHORT, policy)) == figures(simulate(SHORT, policy))


def test_a_simulation_leaves_the_log_as_it_was() -> None:
    log = logging.getLogger("shoal")
    before = log.level
    simulate(replace(SHORT, seconds=0.5), SHOAL)
    assert log.level == before


def test_another_seed_gives_other_figures() -> None:
    assert figures(simulate(SHORT, SHOAL)) != figures(simulate(replace(SHORT, seed=2), SHOAL))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
@pytest.mark.parametrize("trace", sorted(TRACES))
def test_every_live_request_is_answered_once_by_its_deadline(trace: str, policy: Policy) -> None:
    outcome = simulate(replace(SHORT, trace=trace, level=0.5), policy)
    assert len(outcome.answers) == len(outcome.asked)
    assert figures(outcome).late_s <= TICK_S


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
def test_no_device_holds_more_than_it_has(policy: Policy) -> None:
    assert max(held_bytes(simulate(SHORT, policy))) <= SHORT.card.memory_bytes


def test_models_that_all_fit_are_loaded_and_never_reloaded() -> None:
    result = figures(simulate(replace(SHORT, models=4, level=0.3, card=Card(memory_bytes=64 * GIB)), SHOAL))
    assert result.reloads == 0


def test_a_device_never_does_more_than_it_can() -> None:
    assert figures(simulate(replace(SHORT, level=2.0), SHOAL)).utilisation <= 1.0


def test_a_plain_worker_holds_up_all_behind_a_request_whose_model_is_absent() -> None:
    ours, plain = (figures(simulate(SHORT, router(name, 0.05))) for name in ("single choice", "plain"))
    assert plain.utilisation < ours.utilisation
    assert plain.throughput < ours.throughput


def test_shoal_loads_less_than_a_router_that_knows_nothing_of_models() -> None:
    shoal, plain = (figures(simulate(SHORT, policy)) for policy in (SHOAL, router("plain", 0.05)))
    assert shoal.loads < plain.loads
