"""What is learned of a model's forwards, against the same sums done the long way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.batching import ALIKE, ALIKE_FORWARDS, PACE_MEMORY, Mix, Pace

FORWARDS = st.lists(st.tuples(st.integers(1, 5000), st.floats(0.001, 2.0)), min_size=1, max_size=40)


def learned(forwards: list[tuple[int, float]]) -> Pace:
    pace = Pace()
    for cost, seconds in forwards:
        pace.observe(cost, seconds)
    return pace


@settings(derandomize=True, deadline=None)
@given(forwards=FORWARDS)
def test_sums_are_those_of_fading_forwards(forwards: list[tuple[int, float]]) -> None:
    pace = learned(forwards)
    costs, seconds = np.array(forwards).T
    weights = PACE_MEMORY ** np.arange(len(forwards) - 1, -1, -1)
    mean_cost, mean_s = np.average(costs, weights=weights), np.average(seconds, weights=weights)
    assert pace.weight == pytest.approx(weights.sum())
    assert [pace.mean_cost, pace.mean_s] == pytest.approx([mean_cost, mean_s])
    assert pace.spread == pytest.approx((weights * (costs - mean_cost) ** 2).sum(), rel=1e-6, abs=1e-6)
    products = (weights * (costs - mean_cost) * (seconds - mean_s)).sum()
    assert pace.covariance == pytest.approx(products, rel=1e-6, abs=1e-6)
    assert pace.fits == costs.max()


@settings(derandomize=True, deadline=None)
@given(fixed=st.floats(0.001, 0.5), rate=st.floats(1e-6, 1e-2), costs=st.lists(st.integers(1, 5000), max_size=20))
def test_a_line_is_found_and_foretells(fixed: float, rate: float, costs: list[int]) -> None:
    pace = learned([(cost, fixed + rate * cost) for cost in (*costs, 100, 2500, 5000)])
    assert pace.line() == pytest.approx((fixed, rate), rel=1e-4)
    assert pace.predict(700) == pytest.approx(fixed + 700 * rate, rel=1e-4)
    assert pace.rate(700) == pytest.approx(700 / (fixed + 700 * rate), rel=1e-4)


@settings(derandomize=True, deadline=None)
@given(forwards=FORWARDS, limit=st.integers(1, 10_000), target_s=st.floats(0.01, 1.0), failed=st.integers(1, 10_000))
def test_no_budget_exceeds_a_bound(forwards: list[tuple[int, float]], limit: int, target_s: float, failed: int) -> None:
    pace, ran = learned(forwards), max(cost for cost, _ in forwards)
    pace.lower(failed)
    budget = pace.budget(limit, target_s)
    assert 1 <= budget <= limit
    assert pace.ceiling is None or budget <= max(pace.ceiling, 1)
    assert failed <= ran or budget <= max(failed // 2, ran, 1)


@pytest.mark.parametrize(("target_s", "budget"), [(0.25, 400), (0.09, 100), (0.02, 100)])
def test_a_budget_runs_in_the_target_or_in_the_fixed_time_where_that_is_longer(target_s: float, budget: int) -> None:
    pace = learned([(cost, 0.05 + cost * 0.0005) for cost in (100, 400, 200, 800)])
    assert pace.budget(8192, target_s) == pytest.approx(budget, abs=1)


def test_time_that_falls_with_cost_is_no_pace() -> None:
    pace = learned([(100, 1.0), (1000, 0.1), (100, 1.0), (1000, 0.1)])
    line = pace.line()
    assert line is not None and line[1] == 0.0
    assert pace.budget(8192, target_s=0.25) == 8192


def test_a_line_through_less_than_nothing_starts_at_nothing() -> None:
    pace = learned([(100, 0.0), (200, 0.1), (400, 0.3)])
    assert pace.line() == pytest.approx((0.0, 0.001))


@pytest.mark.parametrize(("cost", "seconds"), [(5, 0.5), (10, 0.5), (20, 1.0)])
def test_of_alike_forwards_a_larger_one_is_taken_to_last_longer_in_proportion(cost: int, seconds: float) -> None:
    assert learned([(10, 0.5)] * 3).predict(cost) == pytest.approx(seconds)


def test_nothing_is_foretold_of_nothing() -> None:
    assert (Pace().predict(10), Pace().rate(10), Pace().line()) == (None, None, None)


@pytest.mark.parametrize(("spread", "shows"), [(0.09, False), (0.11, True)])
def test_costs_that_differ_by_a_tenth_show_a_line(spread: float, shows: bool) -> None:
    pace = learned([(round(1000 * (1 + sign * spread)), 0.1) for sign in (1, -1) * 20])
    assert (pace.line() is not None) is shows


@pytest.mark.parametrize(
    ("forwards", "cost", "knows"),
    [(ALIKE_FORWARDS - 1, 10.0, False), (ALIKE_FORWARDS + 1, 10.0, True), (9, 10 * ALIKE, True), (9, 12.1, False)],
)
def test_alike_forwards_speak_for_their_own_size(forwards: int, cost: float, knows: bool) -> None:
    assert (learned([(10, 0.5)] * forwards).rate(cost) is not None) is knows


def test_each_out_of_memory_halves_what_failed() -> None:
    pace = Pace()
    pace.lower(4000)
    assert pace.ceiling == 2000
    pace.lower(1000)
    assert pace.ceiling == 500
    pace.lower(4000)
    assert pace.ceiling == 500


def test_a_ceiling_never_sinks_below_what_ran() -> None:
    pace = learned([(900, 0.1)])
    pace.lower(1000)
    assert pace.ceiling == 900


def test_a_failure_below_what_ran_is_taken_for_the_items_first() -> None:
    pace = learned([(1000, 0.1)])
    pace.lower(1000)
    assert (pace.ceiling, pace.fits) == (None, 500)
    pace.lower(1000)
    assert pace.ceiling == 500


MIXES = st.lists(
    st.tuples(st.integers(1, 64), st.integers(1, 8192), st.floats(1, 8192), st.floats(0.001, 1.0), st.floats(0.0, 2.0)),
    min_size=1,
    max_size=30,
)


@settings(derandomize=True, deadline=None)
@given(batches=MIXES)
def test_a_mix_is_the_fading_sum_of_its_batches(batches: list[tuple[int, int, float, float, float]]) -> None:
    mix = Mix()
    for batch in batches:
        mix.observe(*batch)
    weights = PACE_MEMORY ** np.arange(len(batches) - 1, -1, -1)
    items, cost, estimated, forward_s, _ = (weights[:, None] * np.array(batches)).sum(axis=0)
    longer = (weights * np.maximum([one[3] for one in batches], [one[4] for one in batches])).sum()
    assert [mix.items, mix.cost] == pytest.approx([items, cost])
    assert [mix.estimated, mix.forward_s] == pytest.approx([estimated, forward_s])
    assert mix.device_s == pytest.approx(longer)
    assert mix.estimated_rate(10.0) == pytest.approx(10.0 * estimated / cost * forward_s / longer)
