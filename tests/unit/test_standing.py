"""What a dispatcher tells of its device, and which queues a worker takes from, without a thread or a broker."""

import math
from pathlib import Path
from typing import Any

import pytest

from catalog.snapshot import Model, Snapshot
from tests.unit.workers_doubles import RecordingOutbox, delivery, fake_model
from workers.config import WorkerConfig
from workers.dispatcher import Dispatcher
from workers.served import ServedModel, State
from workers.standing import here, standing, takes


def dispatcher_of(tmp_path: Path, *models: Model, **config: Any) -> Dispatcher:
    """One that nobody started: its models are put into states by hand."""
    snapshot = Snapshot(1, models)
    config = {"memory_bytes": 1000, "loads_at_once": 1, **config}
    return Dispatcher(WorkerConfig(worker_id="w", data=tmp_path, **config), lambda: snapshot, RecordingOutbox())


def serve(dispatcher: Dispatcher, model: Model, state: State, *, size: int = 0, has_work: bool = False) -> ServedModel:
    served = dispatcher.serve(model.spec.digest)
    assert served is not None
    served.state, served.need = state, size
    if size:
        dispatcher.evictions.ledger.reserve(model.spec.digest, size)
    if has_work:
        dispatcher.requests.accept(delivery(model, "text"))
        served.state = state
    return served


@pytest.mark.parametrize(
    ("state", "has_work", "is_here"),
    [
        (State.LOADED, False, True),
        (State.LOADING, False, True),
        (State.WAITING, True, True),
        (State.WAITING, False, False),
        (State.FETCHING, True, True),
        (State.ABSENT, False, False),
        (State.UNLOADING, True, False),
        (State.FAILED, True, False),
    ],
)
def test_a_model_is_here_when_it_is_on_the_device_or_on_its_way(
    tmp_path: Path, state: State, has_work: bool, is_here: bool
) -> None:
    model = fake_model("org/a")
    dispatcher = dispatcher_of(tmp_path, model)
    serve(dispatcher, model, state, has_work=has_work)
    assert takes(dispatcher, model.spec.digest) is is_here
    assert here(dispatcher) == (frozenset({"org/a"}) if is_here else frozenset())


def test_a_model_that_must_make_room_is_here_no_more(tmp_path: Path) -> None:
    model = fake_model("org/a")
    dispatcher = dispatcher_of(tmp_path, model)
    serve(dispatcher, model, State.LOADED, has_work=True).leaving_since = 1.0
    assert here(dispatcher) == frozenset()


def test_no_load_can_start_while_as_many_come_as_may(tmp_path: Path) -> None:
    coming, other = fake_model("org/coming"), fake_model("org/other")
    dispatcher = dispatcher_of(tmp_path, coming, other)
    assert standing(dispatcher, dispatcher.clock()).can_load
    serve(dispatcher, coming, State.LOADING)
    assert not standing(dispatcher, dispatcher.clock()).can_load


def test_who_would_make_room_is_told_with_what_would_be_lost(tmp_path: Path) -> None:
    idle, busy = fake_model("org/idle"), fake_model("org/busy")
    dispatcher = dispatcher_of(tmp_path, idle, busy)
    now = dispatcher.clock()
    for model in (idle, busy):
        served = serve(dispatcher, model, State.LOADED, size=400)
        served.load_s = 3.0
    dispatcher.models[busy.spec.digest].demand.add(now)
    stands = standing(dispatcher, now)
    assert stands.free == 200
    assert [round(leaver.lost_s, 3) for leaver in stands.leavers] == [0.0, 3.0]
    assert stands.lost_s(500) == 0.0
    assert math.isclose(stands.lost_s(900), 3.0)


def test_what_presses_is_the_weighted_age_of_the_oldest_work(tmp_path: Path) -> None:
    model = fake_model("org/a")
    dispatcher = dispatcher_of(tmp_path, model)
    serve(dispatcher, model, State.WAITING, has_work=True)
    now = dispatcher.clock()
    assert standing(dispatcher, now + 2.0).pressing == pytest.approx(2.0, abs=0.1)
    assert standing(dispatcher, now).pressing < 0.1


def test_a_new_standing_is_published_as_soon_as_another_model_is_here(tmp_path: Path) -> None:
    model = fake_model("org/a")
    dispatcher = dispatcher_of(tmp_path, model)
    dispatcher.step()
    assert dispatcher.standing().here == frozenset()
    dispatcher.submit(delivery(model, "text"))
    dispatcher.step()
    assert dispatcher.standing().here == {"org/a"}
    dispatcher.preparation.stop()
