"""A load that does not end is given up after its limit, with its engine; other models go on."""

import pytest

from tests.unit.scripted_device import Device, scripted_model

LIMIT_S = 30.0
WEDGED, MATE, OTHER = scripted_model("org/a", 30), scripted_model("org/b", 10), scripted_model("org/c", 10, "other")


@pytest.fixture
def device() -> Device:
    """A mate of the same engine and a model of another are loaded, and a load has begun that never ends."""
    device = Device([WEDGED, MATE, OTHER], capacity=100, load_hang_s=LIMIT_S, hang_s=1000.0)
    for model in (MATE, OTHER):
        device.ask(model)
        device.finish_all()
        device.finish_all()
    device.ask(WEDGED)
    return device


def errors(device: Device) -> list[str]:
    return [reply.error["code"] for reply in device.outbox.replies if reply.error]


def test_others_are_served_beside_it(device: Device) -> None:
    asked = [device.ask(MATE), device.ask(OTHER)]
    for engine in device.engines:
        engine.finish_forward()
    device.wait(LIMIT_S - 1.0)
    assert set(asked) <= device.answered()
    assert errors(device) == []


def test_it_is_given_up_after_its_limit_and_its_callers_are_told(device: Device) -> None:
    device.wait(LIMIT_S + 0.1)
    assert errors(device) == ["MODEL_LOAD_FAILED"]
    assert device.dispatcher.counters["engine_restarts"] == 1
    assert WEDGED.spec.digest not in device.held


def test_what_was_in_its_engine_comes_back_in_a_new_one(device: Device) -> None:
    device.wait(LIMIT_S + 0.1)
    asked = [device.ask(MATE), device.ask(OTHER)]
    device.finish_all()
    device.finish_all()
    assert set(asked) <= device.answered()
    assert errors(device) == ["MODEL_LOAD_FAILED"]
