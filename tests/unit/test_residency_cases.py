"""What other servers got wrong about models that share a device, on a scripted one."""

import logging

import pytest

from catalog.snapshot import Model
from tests.unit.scripted_device import Device, scripted_model


def serve(device: Device, model: Model) -> None:
    """One call, from cold where need be; a second passes after it."""
    asked = device.ask(model)
    for _ in range(3):
        device.finish_all()
    assert asked in device.answered()
    device.wait(1.0)


def on_device(device: Device, *models: Model) -> set[str]:
    return {model.spec.model for model in models if model.spec.digest in device.held}


def test_a_model_is_not_evicted_while_it_answers() -> None:
    """S066: its forward takes long, and another model has asked for the only room since it began."""
    slow, other = scripted_model("org/slow", 60), scripted_model("org/other", 60)
    device = Device([slow, other], capacity=100)
    serve(device, slow)
    answering, waiting = device.ask(slow), device.ask(other)
    for _ in range(40):
        device.wait(0.5)
    assert on_device(device, slow, other) == {"org/slow"}
    device.engines[0].finish_forward()
    assert answering in device.answered()
    for _ in range(3):
        device.finish_all()
    assert waiting in device.answered()
    assert on_device(device, slow, other) == {"org/other"}


def test_no_new_forward_of_a_model_that_must_leave_keeps_it_there() -> None:
    """S066: a stream of calls renews the lease for ever, unless it ends when its quantum is over."""
    busy, other = scripted_model("org/busy", 60, budget=1), scripted_model("org/other", 60)
    device = Device([busy, other], capacity=100, quantum_s=2.0)
    serve(device, busy)
    waiting = device.ask(other)
    for _ in range(100):
        device.ask(busy)
        device.wait(0.1)
        device.finish_all()
    assert waiting in device.answered()


def test_the_idle_model_that_frees_enough_leaves_and_the_newer_one_stays() -> None:
    """S068"""
    a, b, c = scripted_model("org/a", 6), scripted_model("org/b", 3), scripted_model("org/c", 5)
    device = Device([a, b, c], capacity=10)
    for model in (a, b, c):
        serve(device, model)
    assert on_device(device, a, b, c) == {"org/b", "org/c"}


def test_what_is_larger_than_the_device_is_told_at_once_and_evicts_nobody() -> None:
    """S068"""
    a, b, d = scripted_model("org/a", 6), scripted_model("org/b", 3), scripted_model("org/d", 11)
    device = Device([a, b, d], capacity=10)
    serve(device, a)
    serve(device, b)
    device.ask(d)
    error = device.outbox.replies[-1].error
    assert error is not None and error["error_class"] == "TOO_LARGE"
    assert on_device(device, a, b) == {"org/a", "org/b"}


def test_a_load_starts_when_the_device_has_confirmed_the_room() -> None:
    """S069: not when the unload was asked for."""
    a, b = scripted_model("org/a", 60), scripted_model("org/b", 60)
    device = Device([a, b], capacity=100)
    serve(device, a)
    device.ask(b)
    device.wait(10.0)
    assert (device.engines[0].unloads, device.engines[0].loads) == ([a.spec.digest], [])
    device.engines[0].finish_unload()
    assert device.engines[0].loads == [b.spec.digest]


def test_files_that_are_slow_to_come_hold_up_no_other_model() -> None:
    """S070: neither a load beside them nor the calls of a model that is there."""
    far, near, here = scripted_model("org/far", 20), scripted_model("org/near", 20), scripted_model("org/here", 20)
    device = Device([far, near, here], capacity=100)
    device.preparation.slow.add("org/far")
    serve(device, here)
    waiting = device.ask(far)
    serve(device, near)
    serve(device, here)
    device.preparation.arrive()
    device.wait(0.0)
    for _ in range(3):
        device.finish_all()
    assert waiting in device.answered()


def test_a_load_that_is_slow_holds_up_no_call_of_a_model_that_is_there() -> None:
    """S070"""
    slow, here = scripted_model("org/slow", 20), scripted_model("org/here", 20)
    device = Device([slow, here], capacity=100)
    serve(device, here)
    device.ask(slow)
    asked = device.ask(here)
    device.engines[0].finish_forward()
    assert asked in device.answered()
    assert device.engines[0].loads == [slow.spec.digest]


@pytest.mark.parametrize(
    ("sizes", "used", "newcomer", "stay"),
    [
        ({"org/a": 4, "org/b": 4}, ["org/b", "org/a", "org/b"], 4, {"org/b"}),
        ({"org/a1": 2, "org/a2": 2, "org/b": 4}, ["org/a1", "org/a2", "org/b"], 4, {"org/b"}),
    ],
    ids=["equal sizes", "two small against one large"],
)
def test_of_models_worth_the_same_those_used_last_stay(
    sizes: dict[str, int], used: list[str], newcomer: int, stay: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """S102, with the reason and how long each was idle in the log."""
    models = {name: scripted_model(name, size) for name, size in sizes.items()}
    new = scripted_model("org/new", newcomer)
    device = Device([*models.values(), new], capacity=8)
    for name in used:
        serve(device, models[name])
    with caplog.at_level(logging.INFO, "shoal.loading"):
        serve(device, new)
    assert on_device(device, *models.values()) == stay
    evicted = [record for record in caplog.records if record.getMessage() == "evicting: room for org/new"]
    assert {record.__dict__["model"] for record in evicted} == set(sizes) - stay
    assert all(record.__dict__["idle_s"] >= 1.0 for record in evicted)
