"""The ledger against a device that tells the truth, whatever loads, forwards and engines do. By random histories."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from catalog.snapshot import Model
from tests.unit.scripted_device import Device, ScriptedEngine, scripted_model
from workers.evictions import ON_DEVICE
from workers.residency import Ledger

CAPACITY = 100
BATCH_COST = 8
DEPTH = 2


MODELS = [
    scripted_model("org/pinned", 10, pinned=True, budget=BATCH_COST),
    scripted_model("org/small", 15, budget=BATCH_COST),
    scripted_model("org/half", 50, budget=BATCH_COST),
    scripted_model("org/other", 40, "other", budget=BATCH_COST),
    scripted_model("org/large", 80, "other", budget=BATCH_COST),
    scripted_model("org/huge", 120, budget=BATCH_COST),
]
LANES = st.sampled_from(["interactive", "bulk"])


class OneDevice(RuleBasedStateMachine):
    """The pinned model is always back at once, so that every other one that can fit beside it gets its turn."""

    host_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        times = {"hang_s": 20.0, "load_hang_s": 30.0, "quantum_s": 0.5}
        self.device = Device(MODELS, CAPACITY, host_bytes=self.host_bytes, depth=DEPTH, **times)
        self.asked: set[str] = set()

    def busy(self, what: str) -> ScriptedEngine | None:
        """The first engine that has this to do."""
        return next((engine for engine in self.device.engines if getattr(engine, what)), None)

    @rule(
        asks=st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, BATCH_COST + 4), LANES), min_size=1, max_size=6)
    )
    def ask(self, asks: list[tuple[Model, int, str]]) -> None:
        self.asked |= {self.device.ask(*one) for one in asks}

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.device.wait(seconds)

    @rule(turns=st.integers(1, 5))
    def work(self, turns: int) -> None:
        for _ in range(turns):
            self.device.finish_all()
            self.device.wait(0.3)

    @precondition(lambda self: self.busy("loads"))
    @rule(percent=st.integers(50, 140))
    def finish_load(self, percent: int) -> None:
        """It may come out smaller or larger than it was promised."""
        engine = self.busy("loads")
        assert engine is not None
        engine.finish_load(max(self.device.held[engine.loads[0]] * percent // 100, 1))

    @precondition(lambda self: self.busy("unloads"))
    @rule()
    def finish_unload(self) -> None:
        engine = self.busy("unloads")
        assert engine is not None
        engine.finish_unload()

    @precondition(lambda self: self.busy("forwards"))
    @rule()
    def finish_forward(self) -> None:
        engine = self.busy("forwards")
        assert engine is not None
        engine.finish_forward()

    @precondition(lambda self: self.device.engines)
    @rule(
        what=st.sampled_from(["load", "park", "wake", "forward", "death", "hang"]),
        kind=st.sampled_from(["error", "memory"]),
    )
    def mishap(self, what: str, kind: str) -> None:
        loading, running, parking, waking = map(self.busy, ("loads", "forwards", "parks", "wakes"))
        if what == "load" and loading:
            loading.fail_load(kind)
        elif what == "park" and parking:
            parking.fail_park()
        elif what == "wake" and waking:
            waking.fail_wake(kind)
        elif what == "forward" and running:
            running.fail_forward(kind)
        elif what == "death":
            self.device.engines[-1].die()
        elif what == "hang":
            self.device.wait(40.0)  # longer than a forward or a load may take

    @invariant()
    def the_ledger_is_what_the_device_holds(self) -> None:
        ledger = self.device.dispatcher.evictions.ledger
        assert ledger.held == self.device.held
        assert ledger.used == sum(self.device.held.values())
        assert ledger.free == CAPACITY - ledger.used

    @invariant()
    def who_is_on_the_device_is_in_the_ledger_and_nobody_else(self) -> None:
        models = self.device.dispatcher.models.values()
        assert {one.spec.digest for one in models if one.state in ON_DEVICE} == set(self.device.held)

    @invariant()
    def the_hosts_ledger_is_what_the_host_holds(self) -> None:
        assert self.device.dispatcher.parking.ledger.held == self.device.host
        copies = {digest for engine in self.device.engines for digest in engine.copies}
        assert {model.spec.digest for model in self.device.dispatcher.models.values() if model.in_host} == copies

    @invariant()
    def leases_are_the_forwards_that_run(self) -> None:
        running = [one["digest"] for engine in self.device.engines for one in engine.forwards]
        models = self.device.dispatcher.models
        assert {digest: model.forwards for digest, model in models.items() if model.forwards} == {
            digest: running.count(digest) for digest in running
        }
        assert all(len(engine.forwards) <= DEPTH for engine in self.device.engines)

    def teardown(self) -> None:
        """Nobody starves: once engines do what they are told, everyone is answered within a bounded time."""
        for _ in range(600):
            self.device.finish_all()
            self.device.wait(0.1)
        assert self.asked == self.device.answered()
        self.the_ledger_is_what_the_device_holds()
        self.device.dispatcher.flights.close()
        self.device.dispatcher.selector.close()


class WithHost(OneDevice):
    """Room for some of those that leave, so that they leave the host too."""

    host_bytes = 70

    @precondition(lambda self: self.busy("parks"))
    @rule()
    def finish_park(self) -> None:
        engine = self.busy("parks")
        assert engine is not None
        engine.finish_park()

    @precondition(lambda self: self.busy("wakes"))
    @rule()
    def finish_wake(self) -> None:
        engine = self.busy("wakes")
        assert engine is not None
        engine.finish_wake()


HISTORIES = settings(derandomize=True, deadline=None, max_examples=40, stateful_step_count=50)
OneDevice.TestCase.settings = WithHost.TestCase.settings = HISTORIES
TestOneDevice = OneDevice.TestCase
TestWithHost = WithHost.TestCase


def test_the_first_promise_is_what_the_files_say() -> None:
    half = MODELS[2]
    device = Device([half], CAPACITY)
    device.ask(half)
    assert device.dispatcher.evictions.ledger.held == {half.spec.digest: 50}


def test_a_model_that_comes_back_is_promised_what_it_measured() -> None:
    half, large = MODELS[2], MODELS[4]
    device = Device([half, large], CAPACITY)
    device.ask(half)
    device.engines[0].finish_load(60)
    device.finish_all()
    device.ask(large)
    for _ in range(3):
        device.finish_all()
    device.ask(half)
    device.finish_all()
    assert device.dispatcher.evictions.ledger.held == {half.spec.digest: 60}


def test_a_measure_replaces_the_promise() -> None:
    ledger = Ledger(100)
    ledger.reserve("a", 40)
    ledger.settle("a", 55)
    assert (ledger.held, ledger.used, ledger.free) == ({"a": 55}, 55, 45)


def test_what_is_released_is_free_again_and_only_once() -> None:
    ledger = Ledger(100, {"a": 40, "b": 30})
    ledger.release("a")
    ledger.release("a")
    assert (ledger.held, ledger.used, ledger.free) == ({"b": 30}, 30, 70)


def test_a_promise_may_take_all_that_is_free() -> None:
    ledger = Ledger(100, {"a": 40})
    ledger.reserve("b", 60)
    assert (ledger.used, ledger.free) == (100, 0)


def test_a_promise_never_takes_a_byte_more_than_is_free() -> None:
    ledger = Ledger(100, {"a": 40})
    with pytest.raises(ValueError, match="61 bytes do not fit into 60 free"):
        ledger.reserve("b", 61)
    assert ledger.held == {"a": 40}


def test_a_promise_in_place_of_another_counts_what_that_one_held() -> None:
    ledger = Ledger(100, {"a": 40, "b": 50})
    ledger.reserve("a", 50)
    assert ledger.free == 0
