"""S072: two models in room for one, asked for in turns, on virtual time.

While there is little to do, each is loaded for what waits and leaves for the other's calls: every second a load, and no
call waits for long. Once backlogs stay, quanta begin and loads become few.
"""

from dataclasses import dataclass, field

import pytest

from bench.sim.fleet import GIB, Card
from bench.sim.timeline import Timeline
from bench.sim.worker import SimulatedWorker
from catalog.snapshot import Model, Snapshot
from protocol.messages import Payload, Request
from protocol.spec import ModelSpec
from workers.deliveries import Delivery

SECONDS = 60.0
EVERY_S = 0.1  # a request of each model
LONGEST_WAIT_S = 15.0
LIGHT, BUSY = 100, 1500  # cost of a request: a sixth, and three quarters of the device's time


def model(name: str) -> Model:
    load = {"bytes": GIB}
    return Model(ModelSpec(model=name, family="fake", primitives=("encode",), outputs=("dense",), load=load))


@dataclass
class Interleaved:
    """Clients of both models in strict alternation; `waits` of everything that was answered."""

    cost: int
    card: Card = field(default_factory=lambda: Card(memory_bytes=3 * GIB // 2))
    waits: list[float] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)

    def run(self) -> SimulatedWorker:
        models = [model("org/a"), model("org/b")]
        worker = SimulatedWorker(0, self.card, Snapshot(1, tuple(models)), self.timeline, self._settled)
        for turn in range(int(SECONDS / EVERY_S)):
            for place, one in enumerate(models):
                at = turn * EVERY_S + place * EVERY_S / 2
                self.timeline.at(at, worker.take, [self._delivery(f"{turn}-{place}", one.spec, at)])
        self.timeline.run(SECONDS + LONGEST_WAIT_S)
        return worker

    def _settled(self, worker: SimulatedWorker, delivery: Delivery, is_error: bool) -> None:
        assert not is_error
        self.waits.append(self.timeline.now - delivery.request.published)

    def _delivery(self, request_id: str, spec: ModelSpec, at: float) -> Delivery:
        request = Request(
            id=request_id,
            primitive="encode",
            model=spec.model,
            digest=spec.digest,
            cost=self.cost,
            count=1,
            deadline=at + 100.0,
            published=at,
        )
        return Delivery(request, load=lambda: Payload([]))


@pytest.fixture(scope="module", params=[LIGHT, BUSY], ids=["light", "busy"])
def interleaved(request: pytest.FixtureRequest) -> Interleaved:
    world = Interleaved(request.param)
    world.run()
    return world


def test_two_busy_models_in_room_for_one_are_loaded_seldom() -> None:
    worker = Interleaved(BUSY).run()
    assert sum(len(engine.loads) for engine in worker.engines) < 20


def test_neither_waits_longer_than_its_fair_time(interleaved: Interleaved) -> None:
    assert len(interleaved.waits) == 2 * SECONDS / EVERY_S
    assert max(interleaved.waits) <= LONGEST_WAIT_S


def test_far_more_is_done_than_by_loading_for_each_request(interleaved: Interleaved) -> None:
    assert len(interleaved.waits) > 3 * SECONDS / interleaved.card.load_s(GIB)
