"""Batches at the engines: sent, awaited, collected; and what becomes of them when a forward or its engine fails.

A batch that failed is retried by halves, each half running as it is, until the entry that breaks forwards stands alone
and is refused. An engine that dies or hangs is replaced; what was loaded in it is absent again.
"""

import itertools
import logging
import selectors
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol.errors import InferenceError, ResourceExhausted, ShoalError, WorkerLost
from workers.batching import Entry, batch_cost
from workers.engine.pipe import Unsendable
from workers.engines import Engine
from workers.jobs import Job
from workers.served import ServedModel

if TYPE_CHECKING:
    from workers.dispatcher import Dispatcher

log = logging.getLogger("shoal.flights")

ENGINE_GRACE_S = 5.0
# a forward that takes so much longer than foretold, and so long, no longer keeps the device for itself
STUCK_TIMES, STUCK_S = 10.0, 5.0


@dataclass(frozen=True, slots=True)
class Flight:
    """One batch on its way; `cost` is what its forward costs, padding included."""

    id: int
    model: ServedModel
    batch: list[Entry]
    cost: int
    launched: float
    stuck_at: float  # from then on its engine does not seem to come back


class Flights:
    """Part of the dispatcher, on its thread: engines by bundle, flights by id."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self._config = dispatcher.config
        self._engines: dict[str, Engine] = {}
        self._flights: dict[int, Flight] = {}
        self._ids = itertools.count(1)
        self._landed = 0.0  # when a batch last came back

    def has_room(self, now: float) -> bool:
        """A stuck forward holds its own engine only: others may use the device beside it."""
        return sum(now < flight.stuck_at for flight in self._flights.values()) < self._config.depth

    def is_stuck(self, bundle: str, now: float) -> bool:
        """Whether this engine does nothing but a forward that does not come back, until that or the engine ends."""
        return any(flight.stuck_at <= now and flight.model.spec.bundle == bundle for flight in self._flights.values())

    def engine(self, bundle: str) -> Engine:
        """The engine of `bundle`, started on first need."""
        if bundle not in self._engines:
            start = self._dispatcher.outside.engine
            self._engines[bundle] = start(self._config, bundle, self._dispatcher.selector)
        return self._engines[bundle]

    def send(self, model: ServedModel, batch: list[Entry], now: float) -> None:
        cost = batch_cost([entry.cost for entry in batch], model.packed)
        expected_s = model.pace.predict(cost) or self._config.target_s
        flight = Flight(next(self._ids), model, batch, cost, now, now + max(STUCK_TIMES * expected_s, STUCK_S))
        self._flights[flight.id] = flight
        model.forwards += 1
        model.last_used = now
        model.largest = max(model.largest[0], len(batch)), max(model.largest[1], cost)
        message = {
            "op": "forward",
            "batch": flight.id,
            "digest": model.spec.digest,
            "key": batch[0].prepared.key,
            "inputs": [entry.prepared.inputs for entry in batch],
        }
        try:
            self.engine(model.spec.bundle).send(message)
        except Unsendable as error:
            log.warning("forward not sent: %s", error, extra={"model": model.spec.model})
            self._split(self._take(flight.id), "error")

    def jobs(self) -> set[Job]:
        """Unfinished requests with something on the device."""
        return {entry.job for flight in self._flights.values() for entry in flight.batch if not entry.job.done}

    def serve_engine(self, engine: Engine, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            engine.flush()
        try:
            for message in engine.receive():
                self._handle(message)
        except EOFError:
            self.replace(engine.bundle, "died")

    def _handle(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "done":
                self._land(message)
            case "failed":
                flight = self._take(message["batch"])
                log.warning("forward failed", extra={"model": flight.model.spec.model, "error": message["error"]})
                self._split(flight, message["kind"])
            case _:
                self._dispatcher.loading.handle(message)

    def _take(self, flight_id: int) -> Flight:
        flight = self._flights.pop(flight_id)
        flight.model.forwards -= 1
        return flight

    def _land(self, message: dict[str, Any]) -> None:
        flight = self._take(message["batch"])
        counters = self._dispatcher.counters
        counters["forwards"] += 1
        counters["items"] += len(flight.batch)
        counters["cost"] += flight.cost
        flight.model.pace.observe(flight.cost, message["seconds"])
        estimated = sum(entry.job.estimated_part_cost for entry in flight.batch)
        device_s = self._dispatcher.clock() - max(flight.launched, self._landed)
        flight.model.mix.observe(len(flight.batch), flight.cost, estimated, message["seconds"], device_s)
        self._landed = self._dispatcher.clock()
        self._dispatcher.requests.collect(flight.batch, message["outputs"], message["seconds"])

    def _split(self, flight: Flight, kind: str) -> None:
        """Retry by halves; an entry that failed alone is refused with the error of its `kind`."""
        batch = [entry for entry in flight.batch if not entry.job.done]
        for entry in batch:
            entry.crashes += 1
        relieved = False
        if kind == "memory":
            self._lower(flight)
            relieved = self._dispatcher.evictions.relieve(flight.model, self._dispatcher.clock())
        # alone in a dying engine may be bad luck once: the engine may have been killed from outside
        if len(batch) == 1 and not relieved and (kind != "lost" or batch[0].crashes > 1):
            self._refuse(flight, batch[0], _alone(kind, flight))
            return
        self._dispatcher.counters["retries"] += 1
        middle = (len(batch) + 1) // 2
        flight.model.suspects += [part for part in (batch[:middle], batch[middle:]) if part]

    def _lower(self, flight: Flight) -> None:
        pace = flight.model.pace
        before = pace.ceiling
        pace.lower(flight.cost)
        if pace.ceiling is not None and pace.ceiling != before:
            self._dispatcher.ceilings.put(flight.model.spec, pace.ceiling)

    def _refuse(self, flight: Flight, entry: Entry, error: ShoalError) -> None:
        """One line each, and the batch's number leads to the one trace that the engine has logged."""
        facts = {"request_id": entry.job.id, "batch": flight.id, "code": error.code, "model": flight.model.spec.model}
        log.warning("item given up", extra=facts)
        self._dispatcher.requests.collect([entry], [error], 0.0)

    def end_hung(self, now: float) -> None:
        """Replace an engine whose forward has not come back for too long: a wedged kernel cannot be interrupted."""
        for flight in list(self._flights.values()):
            if now - flight.launched > self._config.hang_s:
                self.replace(flight.model.spec.bundle, f"a forward took longer than {self._config.hang_s:g} s")
                return

    def replace(self, bundle: str, reason: str) -> None:
        """End the engine of `bundle`; the next need starts another."""
        engine = self._engines[bundle]
        how = engine.kill()
        log.error("engine lost: %s", reason, extra={"bundle": engine.bundle, "pid": engine.pid, "exit": how})
        del self._engines[engine.bundle]
        self._dispatcher.counters["engine_restarts"] += 1
        lost = [flight for flight in self._flights.values() if flight.model.spec.bundle == engine.bundle]
        self._dispatcher.loading.engine_lost(engine.bundle)
        for flight in lost:
            self._split(self._take(flight.id), "lost")

    def engines(self) -> list[dict[str, Any]]:
        return [{"bundle": e.bundle, "pid": e.pid, "state": "running"} for e in self._engines.values()]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close(ENGINE_GRACE_S)


def _alone(kind: str, flight: Flight) -> ShoalError:
    name = flight.model.spec.model
    if kind == "memory":
        return ResourceExhausted(f"the item does not fit into the memory that model {name!r} has left")
    if kind == "lost":
        return WorkerLost(f"the item ended the process that runs model {name!r}")
    return InferenceError(f"model {name!r} failed on the item")
