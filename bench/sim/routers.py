"""The usual way: a router picks a worker for every request, from snapshots of the workers that are a little old.

Each worker has the identical dispatcher and its own queue. Routers are given what a very good one would know: what
every request and every load will take. Several gateways route side by side, as behind any load balancer.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.sim.fleet import Card, size_of
from bench.sim.timeline import Timeline
from bench.sim.worker import SimulatedWorker
from catalog.snapshot import Model
from protocol.messages import Payload, Request
from workers.deliveries import Delivery
from workers.served import State

GATEWAYS = 4
HELD = (State.LOADED, State.LOADING)
# how much a load counts against a worker without the model; of 0.5, 1, 2, 4 and 8 this served both routers best
LOAD_WEIGHT = 2.0


@dataclass(slots=True)
class View:
    """What a gateway believes of one worker."""

    work_s: float = 0.0  # device time of what it has not answered
    models: set[str] = field(default_factory=set)  # digests on the device or asked for


Choose = Callable[["Routers", Sequence[View], Request], int]


class Routers:
    """`choose` names a worker; with `counts_own` a gateway adds what it sent itself to the snapshot it has."""

    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        models: Iterable[Model],
        card: Card,
        timeline: Timeline,
        seed: int,
        stale_s: float,
        choose: Choose,
        counts_own: bool = True,
    ) -> None:
        self.source = random.Random(seed)
        self._workers = workers
        self._timeline = timeline
        self._card = card
        self._choose = choose
        self._counts_own = counts_own
        self._sizes = {model.spec.digest: size_of(model.spec) for model in models}
        self._work_s = [0.0 for _ in workers]
        self._waiting: list[dict[str, float]] = [{} for _ in workers]  # when published, by id, the oldest first
        self._views: list[list[View]] = []
        self._turn = 0
        timeline.every(stale_s, self._snapshot, first=0.0)

    def publish(self, requests: Sequence[Request]) -> None:
        routed: dict[int, list[Delivery]] = {}
        for request in requests:
            routed.setdefault(self._route(request), []).append(Delivery(request, load=lambda: Payload([])))
        for number, deliveries in routed.items():
            self._workers[number].take(deliveries)

    def _route(self, request: Request) -> int:
        self._turn = (self._turn + 1) % GATEWAYS
        views = self._views[self._turn]
        number = self._choose(self, views, request)
        self._work_s[number] += self._seconds(request)
        self._waiting[number][request.id] = request.published
        if self._counts_own:
            views[number].work_s += self._seconds(request)
            views[number].models.add(request.digest)
        return number

    def settled(self, worker: SimulatedWorker, delivery: Delivery) -> None:
        self._work_s[worker.number] -= self._seconds(delivery.request)
        del self._waiting[worker.number][delivery.request.id]

    def oldest_wait_s(self, now: float) -> float:
        return max((now - next(iter(waiting.values())) for waiting in self._waiting if waiting), default=0.0)

    def expected_s(self, view: View, digest: str) -> float:
        """When the worker would come to a request for this model."""
        if digest in view.models:
            return view.work_s
        return view.work_s + LOAD_WEIGHT * self._card.load_s(self._sizes[digest])

    def _seconds(self, request: Request) -> float:
        return request.cost / self._card.cost_per_s(self._sizes[request.digest])

    def _snapshot(self) -> None:
        held = [
            {digest for digest, model in worker.dispatcher.models.items() if model.has_work or model.state in HELD}
            for worker in self._workers
        ]
        self._views = [
            [View(work_s, set(models)) for work_s, models in zip(self._work_s, held, strict=True)]
            for _ in range(GATEWAYS)
        ]


def single_choice(routers: Routers, views: Sequence[View], request: Request) -> int:
    """The worker with the least to do in the snapshot."""
    return min(range(len(views)), key=lambda number: views[number].work_s)


def shortest(routers: Routers, views: Sequence[View], request: Request) -> int:
    """The worker that would come to it first, loads included."""
    return min(range(len(views)), key=lambda number: routers.expected_s(views[number], request.digest))


def two_choices(routers: Routers, views: Sequence[View], request: Request) -> int:
    """The better of two: one that has the model, if any, and any."""
    numbers = range(len(views))
    holders = [number for number in numbers if request.digest in views[number].models]
    pair = routers.source.choice(holders or numbers), routers.source.choice(numbers)
    return min(pair, key=lambda number: routers.expected_s(views[number], request.digest))
