"""Fair shares in cost between API keys that compete for one model, and the least share of lower lanes: by property."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.batching import LOWER_LANES_SHARE, Entry, Shares, batch_cost, form_batch
from workers.families import Prepared

BUDGET = 1000
NOW = 1000.0
COSTS = st.lists(st.integers(20, BUDGET), min_size=1, max_size=5)
# Room that nobody's next item fits into goes to whoever has small ones; with items as small as these it is little.
SMALL_COSTS = st.lists(st.integers(20, BUDGET // 5), min_size=1, max_size=5)


def entry(caller: str | None, cost: int, arrival: float = 0.0, lane: int = 0, key: str | None = None) -> Entry:
    return Entry(None, 0, Prepared({}, cost, key=key), arrival, lane, caller)


def run(
    waiting: list[Entry], shares: Shares, *, packed: bool = True, max_items: int = 64, now: float = NOW
) -> list[Entry]:
    """One batch, taken out of what waits and booked, as the dispatcher does."""
    batch = form_batch(waiting, now=now, budget=BUDGET, max_items=max_items, packed=packed, shares=shares)
    shares.charge(waiting, batch)
    waiting[:] = [one for one in waiting if one not in batch]
    return batch


def backlog(caller: str | None, costs: list[int], count: int, lane: int = 0, arrival: float = 0.0) -> list[Entry]:
    return [entry(caller, costs[turn % len(costs)], arrival + turn * 1e-3, lane) for turn in range(count)]


def keep_filled(
    shares: Shares, sources: dict[tuple[str, int], list[int]], turns: int, **form: bool | int
) -> Iterator[list[Entry]]:
    """Batches while every caller of every lane always has more entries waiting than a batch takes."""
    waiting: list[Entry] = []
    for turn in range(turns):
        for (caller, lane), costs in sources.items():
            mine = [one for one in waiting if (one.caller, one.lane) == (caller, lane)]
            missing = 2 * BUDGET - sum(one.cost for one in mine)
            waiting += backlog(caller, costs, max(missing // min(costs), 0) + 1, lane, arrival=float(turn))[:70]
        yield run(waiting, shares, now=float(turn), **form)  # type: ignore[arg-type]


@given(
    costs=st.lists(st.tuples(st.integers(1, 2 * BUDGET), st.floats(0, 100), st.sampled_from([0, 1])), min_size=1),
    had=st.dictionaries(st.tuples(st.sampled_from([0, 1]), st.sampled_from(["a", "b"])), st.floats(0, 1e6)),
    packed=st.booleans(),
)
def test_a_lone_caller_is_served_as_if_there_were_no_shares(
    costs: list[tuple[int, float, int]], had: dict[tuple[int, str | None], float], packed: bool
) -> None:
    entries = [entry("a", cost, arrival, lane) for cost, arrival, lane in costs]
    alone = form_batch(entries, now=NOW, budget=BUDGET, max_items=8, packed=packed)
    shared = form_batch(entries, now=NOW, budget=BUDGET, max_items=8, packed=packed, shares=Shares(had=had))
    assert shared == alone


@settings(deadline=None, max_examples=20)
@given(callers=st.dictionaries(st.sampled_from("abcd"), SMALL_COSTS, min_size=2), packed=st.booleans())
def test_callers_who_compete_get_equal_cost(callers: dict[str, list[int]], packed: bool) -> None:
    served: Counter[str | None] = Counter(dict.fromkeys(callers, 0))
    sources = {(caller, 0): costs for caller, costs in callers.items()}
    for batch in keep_filled(Shares(), sources, turns=25, packed=packed):
        served.update({caller: sum(one.cost for one in batch if one.caller == caller) for caller in callers})
        assert max(served.values()) - min(served.values()) <= 2 * BUDGET


def test_room_that_no_turn_can_use_is_not_wasted() -> None:
    """Two large items never fit together: the small ones of another caller fill the batch, turn or not."""
    sources = {("a", 0): [20], ("b", 0): [501], ("c", 0): [501]}
    for batch in keep_filled(Shares(), sources, turns=10):
        assert sum(one.cost for one in batch if one.caller in ("b", "c")) == 501
        assert sum(one.cost for one in batch) > 0.9 * BUDGET


@given(
    flood=st.lists(st.integers(100, BUDGET), min_size=1, max_size=5),
    cost=st.integers(1, BUDGET),
    packed=st.booleans(),
    past=st.integers(0, 3),
    others=st.integers(1, 4),
)
def test_a_flood_never_keeps_another_caller_waiting(
    flood: list[int], cost: int, packed: bool, past: int, others: int
) -> None:
    """However old and long the flood, a newcomer waits for one batch of each caller at most."""
    shares = Shares()
    waiting = [one for number in range(others) for one in backlog(f"flood-{number}", flood, 40)]
    for _ in range(past):
        run(waiting, shares, packed=packed)
    late = entry("late", cost, arrival=NOW)
    waiting = [*waiting, *backlog("flood-0", flood, 40), late]
    assert any(late in run(waiting, shares, packed=packed) for _ in range(others + 1))


def test_a_flood_of_yesterday_is_no_debt_today() -> None:
    shares = Shares()
    flood = backlog("a", [100], 200)
    while flood:
        run(flood, shares)
    waiting = [*backlog("a", [100], 40), *backlog("b", [100], 40)]
    first = [*run(waiting, shares), *run(waiting, shares), *run(waiting, shares), *run(waiting, shares)]
    assert Counter(one.caller for one in first)["a"] >= 15


def test_a_long_silence_earns_nothing() -> None:
    shares = Shares()
    early = backlog("a", [100], 100)
    for _ in range(8):
        run(early, shares)
    waiting = [*early, *backlog("b", [100], 60, arrival=1.0)]
    served = Counter(one.caller for _ in range(5) for one in run(waiting, shares))
    assert served == {"a": 20, "b": 30}  # of the past a single batch counts


def test_packed_batches_take_turns_by_cost_not_by_count() -> None:
    waiting = [*backlog("long", [200], 10), *backlog("short", [50], 40)]
    assert Counter(one.caller for one in run(waiting, Shares())) == {"long": 3, "short": 8}


def test_padded_batches_match_lengths_within_a_round() -> None:
    """Each caller may have half of the batch; of its half the nearest lengths come first."""
    waiting = [entry("a", 100), entry("a", 98, 1.0), entry("a", 97, 2.0), entry("b", 20, 3.0)]
    batch = form_batch(waiting, now=NOW, budget=300, max_items=8, packed=False, shares=Shares())
    assert [one.cost for one in batch] == [100, 98, 20]


def test_callers_whose_forwards_differ_take_turns_too() -> None:
    shares = Shares()
    waiting = [*(entry("a", 100, float(n), key="x") for n in range(90)), entry("b", 100, 95.0, key="y")]
    assert any(one.caller == "b" for _ in range(2) for one in run(waiting, shares))


@settings(deadline=None, max_examples=20)
@given(live=COSTS, bulk=COSTS, packed=st.booleans(), max_items=st.sampled_from([1, 8, 64]))
def test_bulk_advances_under_a_flood_of_live_work(
    live: list[int], bulk: list[int], packed: bool, max_items: int
) -> None:
    """Even where its entries are never old enough to lead."""
    total = Counter[int]()
    sources = {("live", 0): live, ("job", 1): bulk}
    batches = keep_filled(Shares(), sources, turns=100, packed=packed, max_items=max_items)
    for batch in batches:
        total.update({lane: sum(one.cost for one in batch if one.lane == lane) for lane in (0, 1)})
    assert total[1] >= LOWER_LANES_SHARE * (total[0] + total[1]) - 2 * BUDGET


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("key", [None, "another"])
def test_bulk_gets_its_share_where_age_never_lets_it_lead(packed: bool, key: str | None) -> None:
    """All have just come, and stay so; live work alone would fill every batch, or its forwards differ."""
    shares, waiting, total = Shares(), list[Entry](), Counter[int]()
    for _ in range(200):
        for lane, lane_key in ((0, None), (1, key)):
            missing = 40 - sum(one.lane == lane for one in waiting)
            waiting += [entry(str(lane), 50, NOW, lane, lane_key) for _ in range(missing)]
        total.update(
            {
                lane: sum(one.cost for one in batch if one.lane == lane)
                for batch in [run(waiting, shares)]
                for lane in (0, 1)
            }
        )
    share = LOWER_LANES_SHARE * total.total()
    assert share - 2 * BUDGET <= total[1] <= share + 2 * BUDGET


def test_what_leads_a_batch_is_counted_in_what_bulk_is_owed() -> None:
    bulk, live = backlog("job", [100], 2, lane=1, arrival=NOW), backlog("live", [100], 20, arrival=NOW)
    batch = run([*bulk, *live], Shares(owed=100.0))
    assert [one.lane for one in batch] == [1, *[0] * 9]


@pytest.mark.parametrize("packed", [True, False])
def test_live_work_fills_what_bulk_is_not_owed(packed: bool) -> None:
    sources = {("live", 0): [50], ("job", 1): [50]}
    batches = list(keep_filled(Shares(), sources, turns=100, packed=packed))
    bulk = sum(one.cost for batch in batches for one in batch if one.lane == 1)
    assert bulk <= 2 * LOWER_LANES_SHARE * sum(batch_cost([one.cost for one in batch], True) for batch in batches)


def test_what_is_remembered_does_not_grow_with_the_number_of_callers() -> None:
    shares = Shares()
    for number in range(1000):
        run([entry(f"caller-{number}", 100)], shares)
    assert len(shares.had) <= 2


@pytest.mark.parametrize("past", [10, 100])
def test_a_trickle_saves_nothing_up_for_a_flood(past: int) -> None:
    """A caller of one small entry at a time is always served at once; then it sends a thousand large ones."""
    shares, waiting = Shares(), list[Entry]()
    for turn in range(past):
        waiting += [*backlog("steady", [100], 12, arrival=float(turn)), entry("trickle", 10, turn + 0.5)]
        run(waiting, shares, now=turn + 1.0)
    waiting += backlog("trickle", [100], 1000, arrival=float(past))
    served = Counter(one.caller for _ in range(4) for one in run(waiting, shares, now=past + 1.0))
    assert served["steady"] >= 15


@pytest.mark.parametrize("past", [10, 60])
def test_filling_room_that_nobody_could_use_is_paid_back_for_a_few_batches_only(past: int) -> None:
    """Two callers' entries never fit together, so a third one fills every batch; then its entries are large too."""
    shares, waiting = Shares(), list[Entry]()
    for turn in range(past):
        for caller, cost, count in (("a", 501, 2), ("b", 601, 2), ("small", 20, 25)):
            waiting += backlog(caller, [cost], count, arrival=float(turn))
        run(waiting, shares, now=turn + 1.0)
    late = entry("small", 601, arrival=float(past))
    waiting = [late, *(one for one in waiting if one.caller != "small")]
    assert any(late in run(waiting, shares, now=past + 2.0) for _ in range(10))
