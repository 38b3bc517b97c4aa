from catalog.snapshot import Model, Snapshot
from protocol.spec import ModelSpec
from workers.subscriptions import BROKEN_S, QUIET_S, UNKNOWN_S, Subscriptions
from workers.wake import CANCELS_KEPT_S, Cancelled

A = "shoal.default.org__a.interactive"
A_BULK = "shoal.default.org__a.bulk"


def catalog(*names: str, version: int = 1, pool: str = "default") -> Snapshot:
    return Snapshot(version, tuple(Model(ModelSpec(name, "fake", ("encode",), pool=pool)) for name in names))


def test_only_queues_of_the_catalog_are_served() -> None:
    assert Subscriptions("default").ask([A, "shoal.default.org__b.interactive", "celery"], catalog("org/a"), 0) == [A]


def test_queues_of_another_pool_are_left_to_it() -> None:
    assert Subscriptions("default").ask([A], catalog("org/a", pool="gpu"), 0) == []


def test_the_urgent_lane_comes_first() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A_BULK, A], catalog("org/a"), 0)
    assert subscriptions.wanted() == [A, A_BULK]


def test_a_queue_knows_its_model() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog("org/a"), 0)
    assert (subscriptions.model(A), subscriptions.lane(A)) == ("org/a", "interactive")


def test_demand_goes_quiet() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog("org/a"), 0)
    assert subscriptions.quiet(QUIET_S) == []
    assert subscriptions.quiet(QUIET_S + 1) == [A]


def test_new_demand_keeps_a_queue() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog("org/a"), 0)
    subscriptions.ask([A], catalog("org/a"), QUIET_S)
    assert subscriptions.quiet(QUIET_S + 1) == []


def test_a_new_catalog_brings_new_queues() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog(), 0)
    assert subscriptions.ask([A], catalog("org/a", version=2), 1) == [A]


def test_a_queue_stays_known_while_it_is_consumed() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog("org/a"), 0)
    subscriptions.ask([], catalog(version=2), 1)
    assert subscriptions.model(A) == "org/a"


def test_a_queue_that_ended_is_not_wanted() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog("org/a"), 0)
    subscriptions.end(A)
    assert subscriptions.wanted() == []


def test_cancels_are_forgotten_after_an_hour() -> None:
    cancelled = Cancelled()
    cancelled.add("old", 0)
    cancelled.add("new", 10)
    cancelled.trim(CANCELS_KEPT_S + 5)
    assert ("old" in cancelled, "new" in cancelled) == (False, True)


def test_a_queue_of_a_model_that_comes_a_moment_later_is_served_then() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A, "celery"], catalog(), 0)
    assert subscriptions.ask_again(catalog(), 1) == []
    assert subscriptions.ask_again(catalog("org/a", version=2), 2) == [A]


def test_a_queue_that_stays_unknown_is_forgotten() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog(), 0)
    subscriptions.ask_again(catalog(), UNKNOWN_S)
    assert subscriptions.ask_again(catalog("org/a", version=2), UNKNOWN_S + 1) == []


def test_a_queue_the_broker_refused_is_left_alone_for_a_while() -> None:
    subscriptions = Subscriptions("default")
    subscriptions.ask([A], catalog("org/a"), 0)
    subscriptions.break_off(A, 0)
    assert subscriptions.wanted() == []
    assert subscriptions.ask([A], catalog("org/a"), BROKEN_S - 1) == []
    assert subscriptions.ask([A], catalog("org/a"), BROKEN_S) == [A]
