"""The lower bound for loads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sim.belady import fewest_loads

ORDERS = st.lists(st.sampled_from("abcdef"), max_size=60)
SIZES = {name: size for size, name in enumerate("abcdef", 1)}


def least_recently_used(order: list[str], capacity: int) -> int:
    held: list[str] = []
    loads = 0
    for name in order:
        if name in held:
            held.remove(name)
        else:
            loads += 1
            held = held[-(capacity - 1) :] if capacity > 1 else []
        held.append(name)
    return loads


@pytest.mark.parametrize(("room", "loads"), [(3, 3), (2, 6), (1, 9)])
def test_a_cycle_keeps_all_but_the_last_place(room: int, loads: int) -> None:
    assert fewest_loads(list("abc") * 3, dict.fromkeys("abc", 1), room) == loads


@given(order=ORDERS, capacity=st.integers(1, 6))
def test_it_never_needs_more_loads_than_recency(order: list[str], capacity: int) -> None:
    assert fewest_loads(order, dict.fromkeys("abcdef", 1), capacity) <= least_recently_used(order, capacity)


@given(order=ORDERS, capacity=st.integers(6, 21))
def test_it_loads_each_at_least_once_and_never_more_often_than_used(order: list[str], capacity: int) -> None:
    assert len(set(order)) <= fewest_loads(order, SIZES, capacity) <= len(order)


def test_what_fits_is_loaded_once() -> None:
    assert fewest_loads(list("abcdef") * 9, SIZES, capacity=21) == 6
