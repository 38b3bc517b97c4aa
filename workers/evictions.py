"""Who is on the device, and who leaves it: the ledger, and every eviction with its reason."""

import logging
import math
from typing import TYPE_CHECKING

from workers.residency import Churn, Ledger, Resident, Room, finishes_first, leaving_order, plan_room
from workers.served import ServedModel, State

if TYPE_CHECKING:
    from workers.dispatcher import Dispatcher

log = logging.getLogger("shoal.loading")

RELIEF_EVERY_S = 30.0
ON_DEVICE = (State.LOADING, State.LOADED, State.UNLOADING)


class Evictions:
    """Part of the dispatcher, on its thread: owns the ledger."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self._config = dispatcher.config
        self.ledger = Ledger(dispatcher.config.memory_bytes)
        self.churn = Churn()
        self._relieved: dict[str, float] = {}  # digests of models that others left for, since when
        self._asked: dict[ServedModel, float] = {}  # who was to make room at the last look, since when

    def ask_nobody(self) -> None:
        """Who must make room is decided anew, but how long somebody has been asked stays known."""
        self._asked = {}
        for model in self._dispatcher.models.values():
            if model.leaving_since is not None:
                self._asked[model] = model.leaving_since
            model.leaving_since, model.yielding = None, False

    def plan(self, model: ServedModel, now: float) -> Room:
        """What must happen before it fits; whoever must leave is asked to."""
        room = plan_room(self.ledger.capacity, self.ledger.free, model.need, self._residents(model, now))
        for digest in room.evict:
            self._displace(self._dispatcher.models[digest], model, now)
        return room

    def _displace(self, victim: ServedModel, newcomer: ServedModel, now: float) -> None:
        """Evict now, or as soon as its running forwards are back, or the little that it holds is done."""
        victim.leaving_since = self._asked.get(victim, now)
        held_s = victim.work_s(until=victim.leaving_since)
        if held_s is not None and finishes_first(held_s, now - victim.leaving_since, victim.return_s):
            return
        if victim.forwards:
            victim.yielding = True
        else:
            self.unload(victim, f"room for {newcomer.spec.model}", now)

    def relieve(self, model: ServedModel, now: float) -> bool:
        """A forward of it ran out of memory: whoever is worth least and idle leaves, though not for each huge item."""
        if now - self._relieved.get(model.spec.digest, -math.inf) < RELIEF_EVERY_S:
            return False
        for resident in leaving_order(self._residents(model, now)):
            other = self._dispatcher.models[resident.digest]
            if other is model or other.forwards or resident.leased or resident.pinned or resident.keeps_place:
                continue
            self._relieved[model.spec.digest] = now
            self.unload(other, f"room for a forward of {model.spec.model}", now)
            return True
        return False

    def fit(self, newcomer: ServedModel, now: float) -> None:
        """A model that came out larger than it was promised makes others leave at once, not at the next load."""
        if self.ledger.free < 0:
            others = [one for one in self._residents(newcomer, now) if one.digest != newcomer.spec.digest]
            for digest in plan_room(self.ledger.capacity, self.ledger.free, 0, others).evict:
                self._displace(self._dispatcher.models[digest], newcomer, now)

    def unload(self, model: ServedModel, reason: str, now: float, *, may_park: bool = True) -> None:
        """Off the device: into the host's memory if there is a place, so that it is back soon."""
        to = "park" if may_park and self._dispatcher.parking.take(model, now) else "unload"
        facts = {"model": model.spec.model, "bytes": model.need, "idle_s": round(now - model.last_used, 1), "to": to}
        log.info("evicting: %s", reason, extra=facts)
        if to == "unload":
            self.churn.leave(model.spec.digest, now)
        self._dispatcher.counters["evictions"] += 1
        model.state, model.leaving_since = State.UNLOADING, None
        self._dispatcher.flights.engine(model.spec.bundle).send({"op": to, "digest": model.spec.digest})

    def _residents(self, newcomer: ServedModel, now: float) -> list[Resident]:
        urgency = newcomer.urgency(now)
        return [
            self._resident(model, now, keeps_place=self._keeps_place(model, urgency, now))
            for model in self._dispatcher.models.values()
            if model.state in ON_DEVICE
        ]

    def _resident(self, model: ServedModel, now: float, keeps_place: bool = False) -> Resident:
        return Resident(
            digest=model.spec.digest,
            size=self.ledger.held.get(model.spec.digest, 0),
            last_used=model.last_used,
            worth=model.worth(now),
            pinned=model.is_pinned,
            leased=model.state is not State.LOADED or self._dispatcher.flights.is_stuck(model.spec.bundle, now),
            leaving=model.state is State.UNLOADING,
            keeps_place=keeps_place,
        )

    def _keeps_place(self, model: ServedModel, newcomer_urgency: float, now: float) -> bool:
        """With backlog, a model stays for its quantum (long enough to pay for its load), then while it is older."""
        if not model.has_work:
            return False
        quantum = 2 * model.return_s if model.wake_s else max(self._config.quantum_s, 2 * model.load_s)
        return now - model.loaded_at < quantum or model.urgency(now) >= newcomer_urgency

    def memory(self) -> dict[str, int]:
        return {"capacity": self.ledger.capacity, "used": self.ledger.used, **self._dispatcher.parking.memory()}

    def thrashing(self, now: float) -> list[str]:
        """Names of the models that push each other out; more memory, another pool or a pin is called for."""
        models = self._dispatcher.models
        return [models[digest].spec.model for digest in self.churn.thrashing(now) if digest in models]

    def leaving_order(self, now: float) -> list[str]:
        """Names of the loaded models in the order in which they would make room."""
        models = self._dispatcher.models
        loaded = [m for m in models.values() if m.state is State.LOADED and not m.is_pinned]
        order = leaving_order(self._resident(model, now) for model in loaded)
        return [models[resident.digest].spec.model for resident in order]
