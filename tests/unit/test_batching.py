"""Batch formation and pace: pure functions, checked by example and by property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.batching import Entry, Mix, Pace, batch_cost, form_batch, weighted_age
from workers.families import Prepared


def entry(cost: int, arrival: float = 0.0, lane: int = 0, key: str | None = None) -> Entry:
    return Entry(job=None, index=0, prepared=Prepared({}, cost, key=key), arrival=arrival, lane=lane)


ENTRIES = st.lists(
    st.builds(
        entry,
        cost=st.integers(1, 5000),
        arrival=st.floats(0, 100),
        lane=st.sampled_from([0, 1]),
        key=st.sampled_from([None, "query"]),
    ),
    min_size=1,
    max_size=60,
)


@given(entries=ENTRIES, budget=st.integers(1, 8000), max_items=st.integers(1, 64), packed=st.booleans())
def test_a_batch_keeps_every_promise(entries: list[Entry], budget: int, max_items: int, packed: bool) -> None:
    batch = form_batch(entries, now=100.0, budget=budget, max_items=max_items, packed=packed)
    anchor = max(entries, key=lambda e: weighted_age(e, 100.0))
    assert batch[0] is anchor
    assert len(batch) <= max_items
    assert len({id(e) for e in batch}) == len(batch)
    assert {e.prepared.key for e in batch} == {anchor.prepared.key}
    assert len(batch) == 1 or batch_cost([e.cost for e in batch], packed) <= budget


@given(entries=ENTRIES, budget=st.integers(1, 8000), packed=st.booleans())
def test_repeated_batches_serve_every_entry(entries: list[Entry], budget: int, packed: bool) -> None:
    waiting = list(entries)
    for _ in range(len(entries)):
        batch = form_batch(waiting, now=100.0, budget=budget, max_items=8, packed=packed)
        waiting = [e for e in waiting if e not in batch]
        if not waiting:
            break
    assert waiting == []


def test_padded_batches_take_the_nearest_lengths_around_the_oldest() -> None:
    oldest, near, far = entry(100, arrival=0.0), entry(110, arrival=2.0), entry(8, arrival=1.0)
    batch = form_batch([far, near, oldest], now=3.0, budget=220, max_items=8, packed=False)
    assert batch == [oldest, near]


def test_a_long_mate_never_inflates_the_padded_cost_beyond_the_budget() -> None:
    """S074"""
    short, long = [entry(8, arrival=float(n)) for n in range(31)], entry(8192, arrival=31.0)
    batch = form_batch([*short, long], now=40.0, budget=16_384, max_items=64, packed=False)
    assert batch == short


def test_packed_batches_are_first_come_first_served_within_a_lane() -> None:
    entries = [entry(cost, arrival=float(n)) for n, cost in enumerate([10, 500, 20, 400, 30])]
    assert form_batch(entries, now=9.0, budget=550, max_items=8, packed=True) == entries[:3]


def test_an_interactive_entry_leads_over_an_older_bulk_entry() -> None:
    bulk, live = entry(10, arrival=0.0, lane=1), entry(10, arrival=0.5, lane=0)
    assert form_batch([bulk, live], now=1.0, budget=10, max_items=8, packed=True) == [live]


def test_bulk_that_has_waited_long_leads_at_last() -> None:
    bulk, live = entry(10, arrival=0.0, lane=1), entry(10, arrival=9.5, lane=0)
    assert form_batch([bulk, live], now=10.0, budget=10, max_items=8, packed=True) == [bulk]


def test_the_budget_follows_the_measured_pace() -> None:
    pace = Pace()
    assert pace.budget(8192, target_s=0.25) == 8192
    for cost in (100, 400, 200, 800):
        pace.observe(cost, seconds=0.05 + cost * 0.0005)
    assert pace.budget(8192, target_s=0.25) == pytest.approx(400, abs=1)


def test_small_forwards_alone_do_not_shrink_the_budget() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(cost=10, seconds=0.008)
    assert pace.budget(8192, target_s=0.25) == 8192


def test_the_pace_follows_a_device_that_slowed_down() -> None:
    pace = Pace()
    for slowness in (1, 3):
        for turn in range(400):
            cost = 100 + 100 * (turn % 8)
            pace.observe(cost, seconds=cost * 0.0005 * slowness)
    assert pace.predict(1000) == pytest.approx(1.5, rel=0.05)


def test_the_budget_stays_lowered_after_an_out_of_memory() -> None:
    pace = Pace()
    pace.lower(4000)
    pace.observe(cost=1000, seconds=0.001)
    assert pace.budget(8192, target_s=0.25) == 2000


def test_the_rate_is_that_of_the_batches_asked_about() -> None:
    pace = Pace()
    assert pace.rate(100) is None
    for cost in (100, 400, 200, 800):
        pace.observe(cost, seconds=0.05 + cost * 0.0005)
    assert pace.rate(900) == pytest.approx(900 / 0.5)


def test_forwards_that_are_all_alike_show_the_rate_of_their_own_size_only() -> None:
    pace = Pace()
    for _ in range(10):
        pace.observe(cost=10, seconds=0.5)
    assert pace.rate(10) == pytest.approx(20.0)
    assert pace.rate(100) is None


@pytest.mark.parametrize(("budget", "max_items", "cost"), [(1000, 4, 40), (25, 4, 25), (5, 4, 10)])
def test_a_full_batch_is_bounded_by_cost_and_by_items(budget: int, max_items: int, cost: int) -> None:
    mix = Mix()
    mix.observe(items=2, cost=20, estimated=30.0, forward_s=1.0, device_s=1.0)
    assert mix.full_batch(budget, max_items) == cost


def test_the_rate_in_estimated_cost_counts_the_ways_to_the_device() -> None:
    mix = Mix()
    mix.observe(items=2, cost=20, estimated=30.0, forward_s=0.8, device_s=1.0)
    assert mix.estimated_rate(100.0) == pytest.approx(100 * 1.5 * 0.8)
