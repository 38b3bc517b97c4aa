"""The dispatcher as a server has it that serves models in order of arrival: identical batches and no plan.

A request whose model is absent holds up those behind it until it is loaded, and whichever model was used least recently
makes room, whatever it still holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from catalog.snapshot import Snapshot
from workers.config import WorkerConfig
from workers.deliveries import Outbox
from workers.dispatcher import Dispatcher, Outside
from workers.evictions import Evictions
from workers.loading import Loading
from workers.residency import Resident
from workers.served import ServedModel, State
from workers.turns import Claim, Turns


class ByAge(Turns):
    """Nobody's long backlog makes way for others."""

    def next(self, claims: Sequence[Claim]) -> Claim:
        return max(claims, key=lambda claim: claim.urgency)


class LeastRecentlyUsed(Evictions):
    """Nobody keeps a place, nobody finishes first, nothing is worth more than another."""

    def _resident(self, model: ServedModel, now: float, keeps_place: bool = False) -> Resident:
        return replace(super()._resident(model, now), worth=0.0)

    def _keeps_place(self, model: ServedModel, newcomer_urgency: float, now: float) -> bool:
        return False

    def _displace(self, victim: ServedModel, newcomer: ServedModel, now: float) -> None:
        if victim.forwards:
            victim.leaving_since, victim.yielding = now, True
        else:
            self.unload(victim, f"room for {newcomer.spec.model}", now)


class PlainDispatcher(Dispatcher):
    def __init__(
        self, config: WorkerConfig, catalog: Callable[[], Snapshot], outbox: Outbox, outside: Outside | None = None
    ) -> None:
        super().__init__(config, catalog, outbox, outside)
        self.turns = ByAge()
        self.evictions = LeastRecentlyUsed(self)
        self.loading = Loading(self)

    def _schedule(self, now: float) -> None:
        waiting = [model for model in self.models.values() if model.has_work]
        first = max(waiting, key=lambda model: model.urgency(now), default=None)
        if first is None or first.state is State.LOADED:
            super()._schedule(now)
        else:
            self.loading.advance(now)
