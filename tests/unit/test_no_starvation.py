"""Batches under adversarial arrivals: what each one promises, and how long an entry may wait. By random histories."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from workers.batching import (
    LANE_WEIGHTS,
    LOWER_LANES_SHARE,
    MOST_AHEAD_BATCHES,
    Entry,
    Shares,
    batch_cost,
    form_batch,
    oldest,
)
from workers.families import Prepared

BUDGET = 100
LARGEST = 150  # larger than the budget: such an entry runs alone
CALLERS = ("a", "b", "c")
COST_A_SECOND = 400.0


def entry(caller: str | None, cost: int, arrival: float, lane: int = 0, key: str | None = None) -> Entry:
    return Entry(None, 0, Prepared({}, cost, key=key), arrival, lane, caller)


ARRIVALS = st.tuples(
    st.sampled_from(CALLERS), st.integers(1, LARGEST), st.sampled_from([0, 0, 1]), st.sampled_from([None, "query"])
)


@dataclass(slots=True)
class Wait:
    """An entry and the cost that ran since it came, in all and while its lane led."""

    entry: Entry
    ahead: int  # its own cost and that of its caller's older entries
    passed: int = 0
    led: int = 0

    @property
    def fair(self) -> int:
        """What its lane may run before it: as much for each caller as for its own, and a few batches each."""
        return len(CALLERS) * (self.ahead + (MOST_AHEAD_BATCHES + 1) * LARGEST)


class Backlog(RuleBasedStateMachine):
    """One model's entries. Who arrives, when and how large is the adversary's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waits: list[Wait] = []
        self.shares = Shares()

    @initialize(packed=st.booleans(), max_items=st.sampled_from([1, 3, 64]))
    def choose(self, packed: bool, max_items: int) -> None:
        self.packed, self.max_items = packed, max_items

    @property
    def waiting(self) -> list[Entry]:
        return [wait.entry for wait in self.waits]

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=12))
    def arrive(self, arrivals: list[tuple[str, int, int, str | None]]) -> None:
        for caller, cost, lane, key in arrivals:
            self.now += 1e-4
            older = [one.cost for one in self.waiting if (one.caller, one.lane) == (caller, lane)]
            self.waits.append(Wait(entry(caller, cost, self.now, lane, key), sum(older) + cost))

    @rule(caller=st.sampled_from(CALLERS), cost=st.integers(1, LARGEST), batches=st.integers(1, 12))
    def flood(self, caller: str, cost: int, batches: int) -> None:
        """A caller of the first lane who has two more entries whenever a batch is formed."""
        for _ in range(batches):
            self.arrive([(caller, cost, 0, None)] * 2)
            self.run()

    @precondition(lambda self: self.waits)
    @rule()
    def run(self) -> None:
        waiting, leading = self.waiting, oldest(self.waiting, self.now).lane
        batch = form_batch(
            waiting,
            now=self.now,
            budget=BUDGET,
            max_items=self.max_items,
            packed=self.packed,
            shares=self.shares,
        )
        self.check(waiting, batch)
        self.shares.charge(waiting, batch)
        cost = sum(one.cost for one in batch)
        self.now += cost / COST_A_SECOND
        self.waits = [wait for wait in self.waits if wait.entry not in batch]
        for wait in self.waits:
            wait.passed += cost
            wait.led += cost if leading == wait.entry.lane else 0

    def check(self, waiting: list[Entry], batch: list[Entry]) -> None:
        anchor = batch[0]
        mine = [one for one in waiting if (one.caller, one.lane) == (anchor.caller, anchor.lane)]
        assert anchor is min(mine, key=lambda one: one.arrival)
        assert len({id(one) for one in batch}) == len(batch) <= self.max_items
        assert all(one in waiting and one.prepared.key == anchor.prepared.key for one in batch)
        costs = [one.cost for one in batch]
        assert len(batch) == 1 or batch_cost(costs, self.packed) <= BUDGET
        left = [one for one in waiting if one not in batch and one.prepared.key == anchor.prepared.key]
        assert len(batch) == self.max_items or all(batch_cost([*costs, one.cost], self.packed) > BUDGET for one in left)

    @invariant()
    def nobody_waits_longer_than_is_fair(self) -> None:
        for wait in self.waits:
            if wait.entry.lane == 0:
                assert wait.led * (1 - LOWER_LANES_SHARE) <= wait.fair
            else:
                assert wait.passed * LOWER_LANES_SHARE <= wait.fair

    def teardown(self) -> None:
        for _ in range(len(self.waits)):
            if self.waits:
                self.run()
        assert not self.waits


Backlog.TestCase.settings = settings(derandomize=True, deadline=None, max_examples=30, stateful_step_count=30)
TestBacklog = Backlog.TestCase


@given(bulk=st.floats(0, 1000), later=st.floats(0, 1000))
def test_old_bulk_leads_before_a_fresh_call_for_a_seventh_of_its_age_at_most(bulk: float, later: float) -> None:
    call = bulk + later
    factor = LANE_WEIGHTS[0] / LANE_WEIGHTS[1]
    now = call + later / (factor - 1) + 1e-6
    assert oldest([entry("a", 1, bulk, lane=1), entry("a", 1, call)], now).lane == 0
