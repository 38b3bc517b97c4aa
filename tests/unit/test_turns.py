"""Models on one device share its time: age decides, and turns see to it that no backlog keeps others waiting."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.batching import HEAD_START_S, LANE_WEIGHTS
from workers.turns import LONG_S, SAVED_S, Claim, Turns


@dataclass
class Device:
    """Runs batches one after the other on a clock of its own; a model is the arrivals of its batches and their time."""

    batch_s: Mapping[str, float]
    waiting: dict[str, list[float]]
    lanes: Mapping[str, int] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    now: float = 0.0
    had: Counter[str] = field(default_factory=Counter)

    def claims(self) -> list[Claim]:
        there = {name: arrivals[0] for name, arrivals in self.waiting.items() if arrivals and arrivals[0] <= self.now}
        return [self._claim(name, arrival) for name, arrival in there.items()]

    def _claim(self, name: str, arrival: float) -> Claim:
        lane = self.lanes.get(name, 0)
        work_s = self.batch_s[name] * sum(arrival <= self.now for arrival in self.waiting[name])
        return Claim(name, (self.now - arrival + HEAD_START_S) * LANE_WEIGHTS[lane], lane, work_s)

    def run(self) -> tuple[str, float]:
        """One batch: whose it was, and how long it had waited before it started."""
        claims = self.claims()
        chosen = self.turns.next(claims).digest
        seconds = self.batch_s[chosen]
        self.turns.charge(claims, next(claim for claim in claims if claim.digest == chosen), seconds)
        waited = self.now - self.waiting[chosen].pop(0)
        self.now += seconds
        self.had[chosen] += seconds  # type: ignore[assignment]  # a Counter of seconds
        return chosen, waited


def waits_of(device: Device, name: str) -> list[float]:
    """Until it has nothing left."""
    found = []
    while device.waiting[name]:
        chosen, waited = device.run()
        if chosen == name:
            found.append(waited)
    return found


def test_an_old_backlog_of_slow_items_keeps_no_short_call_waiting() -> None:
    """Twenty items of 3 s are there first; calls of 1 ms to another model come one a second."""
    device = Device({"slow": 3.0, "quick": 0.001}, {"slow": [0.0] * 20, "quick": [1.0 + n for n in range(30)]})
    assert max(waits_of(device, "quick")) <= 3.0 + 0.01
    assert device.had["slow"] == pytest.approx(device.now, rel=0.01)  # the backlog paid next to nothing


def test_a_burst_on_one_model_starves_no_other() -> None:
    batch_s = {"burst": 0.1, "a": 0.02, "b": 0.02}
    device = Device(
        batch_s, {"burst": [0.0] * 600, "a": [5.0 + n for n in range(20)], "b": [5.5 + n for n in range(20)]}
    )
    assert max(waits_of(device, "a")) <= 2 * batch_s["burst"] + 0.05
    assert max(waits_of(device, "b")) <= 2 * batch_s["burst"] + 0.05


def test_without_turns_the_backlog_would_have_gone_first() -> None:
    device = Device({"slow": 3.0, "quick": 0.001}, {"slow": [0.0] * 20, "quick": [1.0]})
    assert max(device.claims(), key=lambda claim: claim.urgency).digest == "slow"
    device.now = 2.0
    assert max(device.claims(), key=lambda claim: claim.urgency).digest == "slow"
    device.run()
    assert device.run()[0] == "quick"


def test_bulk_takes_no_turn_before_live_work() -> None:
    batch_s = {"live": 0.1, "other": 0.1, "job": 0.1}
    device = Device(batch_s, {"live": [0.0] * 40, "other": [0.05] * 40, "job": [3.0] * 40}, lanes={"job": 1})
    ran = [device.run()[0] for _ in range(60)]
    assert "job" not in ran


def test_an_old_bulk_job_of_another_model_lets_live_calls_pass() -> None:
    """Even one so old that its age, for all its lane, would decide."""
    device = Device(
        {"job": 0.25, "live": 0.02}, {"job": [0.0] * 200, "live": [20.0 + n for n in range(10)]}, {"job": 1}
    )
    assert max(waits_of(device, "live")) <= 0.25 + 0.02


@settings(deadline=None, max_examples=50)
@given(
    batches=st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 2.0), min_size=2),
    counts=st.lists(st.integers(5, 30), min_size=4, max_size=4),
)
def test_age_still_gets_half_of_the_time(batches: dict[str, float], counts: list[int]) -> None:
    """What turns took while age would have chosen otherwise is what age had, and a batch."""
    names = sorted(batches)
    device = Device(batches, {name: [0.001 * place] * counts[place] for place, name in enumerate(names)})
    by_turn = 0.0
    while claims := device.claims():
        eldest = max(claims, key=lambda claim: claim.urgency).digest
        chosen, _ = device.run()
        by_turn += batches[chosen] if chosen != eldest else 0.0
    assert by_turn <= device.now / 2 + max(batches.values())


def test_short_backlogs_go_by_age_alone() -> None:
    device = Device({"a": 0.1, "b": 0.1}, {"a": [0.0] * 9, "b": [0.01] * 9})
    assert LONG_S > 9 * 0.1
    assert [device.run()[0] for _ in range(18)] == ["a"] * 9 + ["b"] * 9


def test_what_is_saved_up_for_turns_has_an_end() -> None:
    device = Device({"a": 1.0}, {"a": [0.0] * 100})
    waits_of(device, "a")
    assert device.turns.owed == SAVED_S


def test_neither_a_past_flood_nor_a_past_silence_counts() -> None:
    device = Device({"flood": 1.0, "new": 1.0}, {"flood": [0.0] * 100})
    waits_of(device, "flood")
    flood, new = Claim("flood", 1.0), Claim("new", 1.0)
    assert device.turns.start(flood) - device.turns.start(new) == 1.0  # its last batch, not a hundred
