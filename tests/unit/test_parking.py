"""The middle tier: models that left the device wait in the host's memory, by a scripted device and by a real engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scripted_device import Device, scripted_model
from tests.unit.workers_doubles import RecordingOutbox, Start, delivery, fake_model
from workers.residency import Resident, plan_parking
from workers.standing import standing

FIRST, SECOND, THIRD = (scripted_model(f"org/{name}", 60) for name in ("first", "second", "third"))


def device_of(host: int = 200, **config: object) -> Device:
    return Device([FIRST, SECOND, THIRD], 100, host_bytes=host, quantum_s=0.0, **config)


def use(device: Device, *models: object) -> None:
    """Each in turn until its answer is there."""
    for model in models:
        asked = device.ask(model)  # type: ignore[arg-type]
        for _ in range(8):
            device.finish_all()
            device.wait(0.3)
        assert asked in device.answered()


def states(device: Device) -> dict[str, str]:
    device.wait(1.0)
    return {model["model"]: model["state"] for model in device.dispatcher.status()["models"]}


def test_a_model_that_must_leave_waits_in_the_host_and_wakes_from_there() -> None:
    device = device_of()
    use(device, FIRST, SECOND)
    assert states(device) == {"org/first": "parked", "org/second": "loaded"}
    use(device, FIRST)
    counters = device.dispatcher.counters
    assert (counters["loads"], counters["parks"], counters["wakes"], counters["evictions"]) == (2, 2, 1, 2)


def test_without_this_tier_it_is_loaded_from_its_files_again() -> None:
    device = device_of(host=0)
    use(device, FIRST, SECOND, FIRST)
    assert device.dispatcher.counters["loads"] == 3
    assert "host_used" not in device.dispatcher.evictions.memory()


def test_one_that_the_host_has_no_room_for_leaves_for_its_files() -> None:
    device = device_of(host=50)
    use(device, FIRST, SECOND)
    assert states(device)["org/first"] == "absent"


def test_in_the_host_too_whoever_is_worth_least_makes_room() -> None:
    device = device_of(host=70)
    use(device, FIRST, FIRST, FIRST, SECOND, THIRD)
    assert states(device) == {"org/first": "parked", "org/second": "absent", "org/third": "loaded"}


def test_copies_of_what_is_on_the_device_go_first() -> None:
    device = device_of(host=130)
    use(device, FIRST, SECOND, FIRST)
    assert set(device.host) == {FIRST.spec.digest, SECOND.spec.digest}
    use(device, SECOND, THIRD)
    assert states(device) == {"org/first": "parked", "org/second": "parked", "org/third": "loaded"}
    use(device, FIRST, SECOND)
    assert device.dispatcher.counters["loads"] == 3


def test_those_that_wake_do_not_wait_for_those_that_load() -> None:
    small = [scripted_model(f"org/small-{number}", 20) for number in range(4)]
    device = Device(small, 60, host_bytes=100, quantum_s=0.0, loads_at_once=1)
    use(device, *small)
    assert states(device)["org/small-0"] == "parked"
    cold = scripted_model("org/cold", 20)
    device.catalog.append(cold)
    device.ask(cold)
    while not device.engines[0].loads:
        device.engines[0].finish_park()
    asked = device.ask(small[0])
    for _ in range(4):
        for finish in ("finish_park", "finish_wake", "finish_forward"):
            if getattr(device.engines[0], {"finish_park": "parks", "finish_wake": "wakes"}.get(finish, "forwards")):
                getattr(device.engines[0], finish)()
    assert asked in device.answered()
    assert device.engines[0].loads == [cold.spec.digest]


def test_one_that_does_not_wake_is_loaded_from_its_files() -> None:
    device = device_of()
    use(device, FIRST, SECOND)
    asked = device.ask(FIRST)
    device.wait(0.3)
    device.engines[0].finish_park()
    device.engines[0].fail_wake("memory")
    for _ in range(4):
        device.finish_all()
        device.wait(0.3)
    assert asked in device.answered()
    assert device.dispatcher.counters["loads"] == 3


def test_what_nobody_uses_leaves_the_device_and_later_the_host() -> None:
    device = device_of(idle_unload_s=10.0)
    use(device, FIRST)
    device.wait(11.0)
    device.finish_all()
    assert states(device) == {"org/first": "parked"}
    device.wait(10.0)
    assert states(device) == {"org/first": "absent"}
    assert device.host == {}


def test_a_parked_model_that_left_the_catalog_leaves_the_host() -> None:
    device = device_of()
    use(device, FIRST, SECOND)
    device.catalog.remove(FIRST)
    device.wait(1.0)
    assert set(device.host) == set()
    assert set(states(device)) == {"org/second"}


def test_with_its_engine_a_parked_model_is_lost() -> None:
    device = device_of()
    use(device, FIRST, SECOND)
    device.engines[0].die()
    assert states(device) == {"org/first": "absent", "org/second": "absent"}
    use(device, FIRST)


def test_others_are_told_what_a_parked_model_costs_here() -> None:
    device = device_of()
    use(device, FIRST, SECOND, FIRST)
    use(device, SECOND)
    assert standing(device.dispatcher, device.now).wakes == {"org/first": pytest.approx(0.06)}


RESIDENTS = st.builds(
    Resident,
    digest=st.uuids().map(str),
    size=st.integers(1, 50),
    last_used=st.floats(0, 100),
    worth=st.floats(0, 10),
    leased=st.booleans(),
)


@given(capacity=st.integers(0, 200), parked=st.lists(RESIDENTS, max_size=8), newcomer=RESIDENTS)
def test_a_place_in_the_host_never_costs_more_than_it_saves(
    capacity: int, parked: list[Resident], newcomer: Resident
) -> None:
    leaving = plan_parking(capacity, parked, newcomer)
    if leaving is not None:
        gone = [resident for resident in parked if resident.digest in leaving]
        kept = sum(resident.size for resident in parked) - sum(resident.size for resident in gone)
        assert kept + newcomer.size <= capacity
        assert not any(resident.leased for resident in gone)
        assert sum(one.worth * one.size for one in gone) <= newcomer.worth * newcomer.size
    elif newcomer.size <= capacity - sum(resident.size for resident in parked):
        pytest.fail("there was room")


def test_an_engine_parks_and_wakes_what_it_loaded_once(start: Start, outbox: RecordingOutbox) -> None:
    first, second = (fake_model(name, bytes=60, load_s=0.1, wake_s=0.01) for name in ("org/a", "org/b"))
    dispatcher = start(first, second, memory_bytes=100, host_bytes=130, quantum_s=0.0)
    for _ in range(5):
        for model in (first, second):
            asked = delivery(model, "hello")
            dispatcher.submit(asked)
            (reply,) = outbox.wait_for([asked.request.id])
            assert reply.error is None
    counters = dispatcher.counters
    assert (counters["loads"], counters["wakes"]) == (2, 8)
