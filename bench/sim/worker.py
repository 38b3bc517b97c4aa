"""One worker: the real dispatcher on a simulated card."""

import selectors
from collections.abc import Callable, Sequence

from bench.sim.card import InstantPreparation, SimulatedEngine
from bench.sim.fleet import Card
from bench.sim.timeline import Timeline
from catalog.snapshot import Snapshot
from protocol.replies import Reply
from workers.config import WorkerConfig
from workers.deliveries import Delivery
from workers.dispatcher import TICK_S, Dispatcher, Outside

# the worker, the delivery, and whether it was answered with an error
Settled = Callable[["SimulatedWorker", Delivery, bool], None]


class SimulatedWorker:
    """`settled` hears of every answer; it must not call back into the worker at once, as no broker thread would."""

    def __init__(
        self,
        number: int,
        card: Card,
        catalog: Snapshot,
        timeline: Timeline,
        settled: Settled,
        dispatcher: type[Dispatcher] = Dispatcher,
    ) -> None:
        self.number = number
        self.engines: list[SimulatedEngine] = []
        self.longest_held_s = 0.0  # from taken to started
        self._timeline = timeline
        self._settled = settled
        self._taken: dict[str, float] = {}

        def engine(config: WorkerConfig, bundle: str, selector: selectors.BaseSelector) -> SimulatedEngine:
            self.engines.append(SimulatedEngine(bundle, card, timeline, self._engine_spoke))
            return self.engines[-1]

        outside = Outside(timeline, timeline, lambda config: InstantPreparation(), engine)
        self.dispatcher = dispatcher(card.config(f"worker-{number}"), lambda: catalog, self, outside)
        timeline.every(TICK_S, self.dispatcher.step, first=TICK_S * (number % 8) / 8)

    def take(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._taken[delivery.request.id] = self._timeline.now
            self.dispatcher.submit(delivery)
        self.dispatcher.step()

    def _engine_spoke(self, engine: SimulatedEngine) -> None:
        self.dispatcher.flights.serve_engine(engine, selectors.EVENT_READ)
        self.dispatcher.step()

    # -- Outbox ------------------------------------------------------------------------------------------------

    def started(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            held_s = self._timeline.now - self._taken.pop(delivery.request.id)
            self.longest_held_s = max(self.longest_held_s, held_s)

    def reply(self, delivery: Delivery, finish: Callable[[], Reply]) -> None:
        self._taken.pop(delivery.request.id, None)
        self._settled(self, delivery, finish().error is not None)

    def keep(self, delivery: Delivery, started: float, until: float) -> None:
        raise AssertionError("no simulated call is late on its device")

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError("no simulated worker drains")
