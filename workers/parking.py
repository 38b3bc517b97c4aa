"""Models that left the device and stay in the host's memory, from which they wake in milliseconds: the middle tier.

A copy once made stays while its model is on the device, for weights do not change: then leaving again costs nothing.
Copies of models that are on the device go first when others need the room.
"""

import logging
from typing import TYPE_CHECKING

from workers.residency import Ledger, Resident, plan_parking
from workers.served import ServedModel, State

if TYPE_CHECKING:
    from workers.dispatcher import Dispatcher

log = logging.getLogger("shoal.parking")

FIRST_BYTES_PER_S = 10e9  # until a model woke: what cards of some years ago read from pinned memory
LEAST_S = 1e-4
LEARNING = 0.2


class Parking:
    """Part of the dispatcher, on its thread: owns the ledger of the host's memory."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self.ledger = Ledger(dispatcher.config.host_bytes)
        self._bytes_per_s = FIRST_BYTES_PER_S

    def expected_s(self, model: ServedModel) -> float:
        """How long it will wake; 0 when it has no place in the host's memory."""
        return model.need / self._bytes_per_s if model.can_park and model.need <= self.ledger.capacity else 0.0

    def woke(self, model: ServedModel, seconds: float) -> None:
        model.wake_s = max(seconds, LEAST_S)
        self._bytes_per_s += LEARNING * (model.need / model.wake_s - self._bytes_per_s)
        self._dispatcher.counters["wakes"] += 1

    def take(self, model: ServedModel, now: float) -> bool:
        """Promise a place to one that leaves the device, others leaving the host for it; False when it gets none."""
        if model.in_host or not model.can_park:
            return model.in_host
        held = [self._resident(self._dispatcher.models[digest], now) for digest in self.ledger.held]
        leaving = plan_parking(self.ledger.capacity, held, self._resident(model, now))
        if leaving is None:
            model.wake_s = 0.0
            return False
        for digest in leaving:
            self.drop(self._dispatcher.models[digest], f"room for {model.spec.model}", now)
        self.ledger.reserve(model.spec.digest, model.need)
        return True

    def _resident(self, model: ServedModel, now: float) -> Resident:
        """Worth what a load from its files would cost, or nothing while it is on the device."""
        is_spare = model.in_host and model.state is State.LOADED
        return Resident(
            digest=model.spec.digest,
            size=self.ledger.held.get(model.spec.digest, model.need),
            last_used=model.last_used,
            worth=0.0 if is_spare else model.demand.lately(now) * model.load_s / max(model.need, 1),
            leased=not is_spare and (model.has_work or not model.is_parked),
        )

    def parked(self, model: ServedModel, size: int) -> None:
        """Its copy holds so much."""
        self.ledger.settle(model.spec.digest, size)
        model.in_host = True
        self._dispatcher.counters["parks"] += 1

    def drop(self, model: ServedModel, reason: str, now: float) -> None:
        """An engine does this before it reads any later word, so it need not be confirmed."""
        idle_s = round(now - model.last_used, 1)
        log.info("leaves the host's memory: %s", reason, extra={"model": model.spec.model, "idle_s": idle_s})
        if model.is_parked:
            self._dispatcher.evictions.churn.leave(model.spec.digest, now)
        self._dispatcher.flights.engine(model.spec.bundle).send({"op": "drop", "digest": model.spec.digest})
        self.gone(model)

    def gone(self, model: ServedModel) -> None:
        """The host has nothing of it any more."""
        self.ledger.release(model.spec.digest)
        model.in_host = False

    def memory(self) -> dict[str, int]:
        """Empty without this tier."""
        return {"host_capacity": self.ledger.capacity, "host_used": self.ledger.used} if self.ledger.capacity else {}
