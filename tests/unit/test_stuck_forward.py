"""S067: a forward that never comes back holds its own engine, not the device."""

import pytest

from catalog.snapshot import Model
from tests.unit.scripted_device import Device, ScriptedEngine, scripted_model
from workers.flights import STUCK_S, STUCK_TIMES

WEDGED = scripted_model("org/wedged", 30)
MATE = scripted_model("org/mate", 10)
OTHER = scripted_model("org/other", 10, "other")
COLD = scripted_model("org/cold", 60, "other")


def engine(device: Device, bundle: str) -> ScriptedEngine:
    return next(one for one in device.engines if one.bundle == bundle)


def serve_once(device: Device, model: Model) -> str:
    request = device.ask(model)
    device.finish_all()
    device.finish_all()
    assert request in device.answered()
    return request


@pytest.fixture
def device() -> Device:
    """Three models loaded and used; the wedged one's next forward is running."""
    device = Device([WEDGED, MATE, OTHER, COLD], capacity=100, hang_s=60.0)
    for model in (WEDGED, MATE, OTHER):
        serve_once(device, model)
        device.wait(1.0)
    device.ask(WEDGED)
    return device


def test_other_engines_wait_for_a_forward_as_long_as_it_may_take(device: Device) -> None:
    device.ask(OTHER)
    device.wait(STUCK_S - 0.1)
    assert engine(device, "other").forwards == []


def test_other_engines_go_on_beside_a_stuck_forward(device: Device) -> None:
    asked = device.ask(OTHER)
    device.wait(STUCK_S)
    engine(device, "other").finish_forward()
    assert asked in device.answered()


def test_nothing_more_is_sent_to_a_stuck_engine(device: Device) -> None:
    device.ask(MATE)
    device.wait(STUCK_S)
    assert [one["digest"] for one in engine(device, "base").forwards] == [WEDGED.spec.digest]


def test_a_forward_foretold_to_be_long_is_not_stuck_so_soon(device: Device) -> None:
    device.wait(2.0)
    engine(device, "base").finish_forward(seconds=2.0)
    device.ask(WEDGED)
    device.ask(OTHER)
    device.wait(STUCK_S)
    assert engine(device, "other").forwards == []
    device.wait(STUCK_TIMES * 2.0)
    assert len(engine(device, "other").forwards) == 1


def test_room_is_made_by_others_than_the_stuck_model(device: Device) -> None:
    """The wedged model is worth least, but would leave only with its engine."""
    device.wait(STUCK_S)
    asked = device.ask(COLD)
    engine(device, "other").finish_unload()
    engine(device, "other").finish_load(60)
    engine(device, "other").finish_forward()
    assert asked in device.answered()


def test_after_its_limit_the_engine_ends_and_its_models_come_back(device: Device) -> None:
    waiting = device.ask(MATE)
    device.wait(60.1)
    assert [one.bundle for one in device.engines] == ["other", "base"]
    assert device.dispatcher.counters["engine_restarts"] == 1
    device.finish_all()
    device.finish_all()
    assert waiting in device.answered()


def test_an_item_that_hangs_twice_alone_is_refused_with_the_error_of_its_kind(device: Device) -> None:
    device.wait(60.1)
    engine(device, "base").finish_load(30)
    device.wait(60.1)
    assert [reply.error["code"] for reply in device.outbox.replies if reply.error] == ["WORKER_LOST"]
