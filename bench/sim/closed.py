"""The crowd of bench/crowd.py on virtual time: the real dispatcher, one simulated device, clients that wait.

What the figures are when nothing but the schedule counts: no gateway, no broker, no other process on the machine.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import crowd
from bench.sim.fleet import Card, make_model
from bench.sim.timeline import Timeline
from bench.sim.worker import SimulatedWorker
from catalog.snapshot import Model, Snapshot
from protocol.messages import Payload, Request
from workers.config import WorkerConfig
from workers.deliveries import Delivery

SETTLED_S, SECONDS = 20.0, 140.0
ROUND_TRIP_S = 0.003  # from an answer to the worker's taking of the same client's next request
NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class FakeCard(Card):
    """What the entries of bench/crowd.py say."""

    room: int = crowd.ROOM

    def forward_s(self, size: int, cost: int) -> float:
        return crowd.FORWARD_S

    def load_s(self, size: int) -> float:
        return crowd.LOAD_S

    def wake_s(self, size: int) -> float:
        return crowd.WAKE_S

    def config(self, worker_id: str) -> WorkerConfig:
        memory = crowd.SIZE * self.room + crowd.SIZE // 2
        return WorkerConfig(worker_id, Path(), memory_bytes=memory, host_bytes=self.host_bytes)


@dataclass(slots=True)
class Crowd:
    """Clients who ask a worker that has nobody beside it, so that it takes all they ask."""

    asked: Iterator[int]
    room: int
    host_bytes: int = 0
    ended: list[float] = field(default_factory=list)
    longest_s: float = 0.0
    loads: int = 0

    def run(self, seconds: float) -> float:
        """Requests answered a second, after what it takes to settle."""
        models = [make_model(crowd.name(number), crowd.SIZE) for number in range(crowd.MODELS)]
        timeline, ids = Timeline(), itertools.count()

        def settled(worker: SimulatedWorker, delivery: Delivery, is_error: bool) -> None:
            assert not is_error, "nothing here can fail"
            self.ended.append(timeline.now)
            self.longest_s = max(self.longest_s, timeline.now - delivery.request.published)
            timeline.at(timeline.now + ROUND_TRIP_S, ask, 1)

        def ask(clients: int) -> None:
            worker.take([_delivery(next(self.asked), models, next(ids), timeline.now) for _ in range(clients)])

        worker = SimulatedWorker(
            0, FakeCard(room=self.room, host_bytes=self.host_bytes), Snapshot(1, tuple(models)), timeline, settled
        )
        timeline.at(0.0, ask, crowd.CLIENTS)
        timeline.run(seconds)
        self.loads = sum(len(engine.loads) for engine in worker.engines)
        return sum(ended >= SETTLED_S for ended in self.ended) / (seconds - SETTLED_S)


def _delivery(number: int, models: Sequence[Model], request_id: int, now: float) -> Delivery:
    spec = models[number].spec
    request = Request(
        id=f"request-{request_id}",
        primitive="encode",
        model=spec.model,
        digest=spec.digest,
        cost=2,
        count=1,
        deadline=NEVER_S,
        published=now,
    )
    return Delivery(request, load=lambda: Payload([]))


@dataclass(frozen=True, slots=True)
class Compared:
    whole: float  # requests a second with room for all
    part: float
    loaded: float  # the same without a place in the host's memory
    longest_s: float
    loads: int

    @property
    def share(self) -> float:
        return self.part / self.whole


def compare(traffic: crowd.Traffic) -> Compared:
    order = [model for model, _ in traffic.asked]
    whole = Crowd(itertools.cycle(order), crowd.MODELS).run(2 * SETTLED_S)
    part = Crowd(itertools.cycle(order), crowd.ROOM, crowd.HOST)
    loaded = Crowd(itertools.cycle(order), crowd.ROOM).run(SECONDS)
    return Compared(whole, part.run(SECONDS), loaded, part.longest_s, part.loads)
