"""The ledger and the plan for room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.residency import (
    CHURN_RETURNS,
    CHURN_WINDOW_S,
    Churn,
    Demand,
    Ledger,
    Resident,
    Room,
    finishes_first,
    leaving_order,
    plan_room,
)

RESIDENTS = st.lists(
    st.builds(
        Resident,
        digest=st.uuids().map(str),
        size=st.integers(1, 40),
        last_used=st.floats(0, 100),
        worth=st.floats(0, 1),
        pinned=st.booleans(),
        leased=st.booleans(),
        keeps_place=st.booleans(),
    ),
    max_size=12,
)


@given(residents=RESIDENTS, slack=st.integers(0, 50), need=st.integers(1, 200))
def test_a_plan_evicts_only_who_may_leave_and_makes_enough_room(
    residents: list[Resident], slack: int, need: int
) -> None:
    capacity = sum(resident.size for resident in residents) + slack
    room = plan_room(capacity, slack, need, residents)
    leaving = [resident for resident in residents if resident.digest in room.evict]
    assert not any(resident.pinned or resident.leased or resident.keeps_place for resident in leaving)
    if not room.wait and not room.impossible:
        assert slack + sum(resident.size for resident in leaving) >= need
        assert all(slack + sum(r.size for r in leaving if r is not spare) < need for spare in leaving)
    else:
        assert room.evict == ()


@given(sizes=st.lists(st.integers(1, 40), max_size=20))
def test_the_ledger_never_promises_more_than_it_has(sizes: list[int]) -> None:
    ledger = Ledger(100)
    for number, size in enumerate(sizes):
        if size > ledger.free:
            with pytest.raises(ValueError, match="do not fit"):
                ledger.reserve(str(number), size)
        else:
            ledger.reserve(str(number), size)
        assert 0 <= ledger.free <= 100


def test_who_is_leaving_is_waited_for_and_nobody_else_goes() -> None:
    residents = [Resident("a", 4, 1.0, leaving=True), Resident("b", 4, 2.0)]
    assert plan_room(8, 0, 4, residents) == Room(wait=True)


def test_where_who_is_leaving_is_not_enough_another_goes_too() -> None:
    residents = [Resident("a", 4, 1.0, leaving=True), Resident("b", 4, 2.0), Resident("c", 4, 3.0)]
    assert plan_room(12, 0, 8, residents) == Room(evict=("b",))


def test_the_idle_model_that_makes_enough_room_leaves_alone() -> None:
    """S068"""
    residents = [Resident("a", 6, last_used=1.0), Resident("b", 3, last_used=2.0)]
    assert plan_room(10, 1, 5, residents) == Room(evict=("a",))


def test_a_need_beyond_the_device_evicts_nobody() -> None:
    """S068"""
    assert plan_room(10, 4, 11, [Resident("a", 6, last_used=1.0)]) == Room(impossible=True)


def test_of_two_equal_models_the_less_recently_used_leaves() -> None:
    """S102"""
    residents = [Resident("a", 4, last_used=1.0), Resident("b", 4, last_used=2.0)]
    assert plan_room(8, 0, 4, residents) == Room(evict=("a",))


def test_two_older_small_models_leave_before_a_newer_large_one() -> None:
    """S102"""
    residents = [Resident("a", 2, 1.0), Resident("b", 2, 2.0), Resident("c", 4, 3.0)]
    assert plan_room(8, 0, 4, residents) == Room(evict=("a", "b"))


def test_a_small_model_stays_when_a_larger_one_leaves_anyway() -> None:
    residents = [Resident("small", 1, 1.0), Resident("large", 6, 2.0)]
    assert plan_room(7, 0, 5, residents) == Room(evict=("large",))


def test_a_model_that_many_ask_for_stays_though_another_was_used_since() -> None:
    residents = [Resident("wanted", 4, 1.0, worth=0.9), Resident("once", 4, 2.0, worth=0.1)]
    assert plan_room(8, 0, 4, residents) == Room(evict=("once",))


@given(residents=RESIDENTS)
def test_who_leaves_first_is_worth_least(residents: list[Resident]) -> None:
    order = leaving_order(residents)
    assert sorted(r.worth for r in residents) == [r.worth for r in order]


@given(times=st.lists(st.floats(0, 1000), min_size=1, max_size=20), later=st.floats(0, 1000))
def test_demand_fades_and_never_counts_more_than_was_asked(times: list[float], later: float) -> None:
    demand = Demand()
    for at in sorted(times):
        demand.add(at)
    end = max(times)
    assert 1.0 <= demand.lately(end) <= len(times) + 1e-9
    assert 0.0 <= demand.lately(end + later) <= demand.lately(end)


def test_a_crowd_that_left_a_minute_ago_is_worth_less_than_a_few_who_ask_now() -> None:
    crowd, few = Demand(), Demand()
    for _ in range(10):
        crowd.add(0.0)
    for _ in range(3):
        few.add(60.0)
    assert crowd.lately(60.0) < few.lately(60.0)


@pytest.mark.parametrize(
    ("held_s", "asked_s", "finishes"), [(0.1, 0.0, True), (0.1, 0.9, True), (0.1, 1.0, False), (1.0, 0.0, False)]
)
def test_a_leaving_model_finishes_what_takes_less_than_a_load(held_s: float, asked_s: float, finishes: bool) -> None:
    assert finishes_first(held_s, asked_s, load_s=1.0) is finishes


def test_a_leased_model_is_waited_for() -> None:
    """S066"""
    assert plan_room(8, 0, 4, [Resident("a", 8, 1.0, leased=True)]) == Room(wait=True)


def taking_turns(turns: int, every_s: float) -> Churn:
    churn = Churn()
    for turn in range(turns):
        churn.leave("ab"[turn % 2], turn * every_s)
        churn.come("ab"[(turn + 1) % 2], turn * every_s)
    return churn


def test_models_that_push_each_other_out_are_named() -> None:
    churn = taking_turns(CHURN_RETURNS + 1, every_s=10.0)
    assert set(churn.thrashing(now=70.0)) == {"a", "b"}


def test_rare_returns_are_no_thrashing() -> None:
    assert taking_turns(CHURN_RETURNS, every_s=10.0).thrashing(now=60.0) == ()
    assert taking_turns(20, every_s=CHURN_WINDOW_S).thrashing(now=20 * CHURN_WINDOW_S) == ()


def test_thrashing_that_ended_is_forgotten() -> None:
    churn = taking_turns(20, every_s=1.0)
    assert churn.thrashing(now=20.0) != ()
    assert churn.thrashing(now=21.0 + CHURN_WINDOW_S) == ()
