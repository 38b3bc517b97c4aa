"""Moving models on and off the device: find files, make room, load, evict, fail with a cooldown.

Loads run beside serving, one per model, several at once. Who has waited longest gets room first, and what it waits for
is not given to a later one, so a large model is not starved by small ones.
"""

import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from catalog.snapshot import Model
from protocol import errors
from protocol.errors import ShoalError
from workers.bundles import Unusable
from workers.engine.pipe import Unsendable
from workers.evictions import ON_DEVICE
from workers.load_errors import bundle_unusable, load_failed, too_large
from workers.prepare import Files
from workers.served import ServedModel, State

if TYPE_CHECKING:
    from workers.dispatcher import Dispatcher

log = logging.getLogger("shoal.loading")

LONGEST_COOLDOWN_S = 1800.0
# the start of a worker leaves the cores to the processes beside it; the engine's imports come after
WARM_AFTER_S = 2.0
MORE_ROOM = 1.5
LOADS_LOST_BEFORE_FAILING = 3


class Loading:
    """Part of the dispatcher, on its thread: owns every model's state."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self._config = dispatcher.config
        self._evictions = dispatcher.evictions
        self._ledger = dispatcher.evictions.ledger
        self._parking = dispatcher.parking
        self._warm_at = dispatcher.clock() + WARM_AFTER_S

    # -- what should be loaded ---------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Bring every wanted model one step nearer to the device, longest waiting first."""
        wanted = [model for model in self._dispatcher.models.values() if self._is_wanted(model)]
        for model in sorted(wanted, key=lambda model: model.urgency(now), reverse=True):
            if model.files is None:
                self._find(model)
            elif model.state in (State.ABSENT, State.FAILED):
                model.state = State.WAITING
        self._evictions.ask_nobody()
        for model in sorted(wanted, key=lambda model: model.urgency(now), reverse=True):
            if model.state is State.WAITING and not self._make_room(model, now):
                return

    def _is_wanted(self, model: ServedModel) -> bool:
        if model.state in ON_DEVICE or model.state is State.FETCHING:
            return False
        if model.state is State.FAILED and self._dispatcher.clock() < model.retry_at:
            return False
        return model.has_work or model.is_pinned

    def tick(self, now: float) -> None:
        """Follow the catalog: pinned models come, models that left it go."""
        snapshot = self._dispatcher.catalog()
        if now >= self._warm_at and snapshot.models:
            self._warm_at = math.inf
            self._warm(entry for entry in snapshot.models.values() if entry.pinned or entry.spec.source.package)
        for entry in snapshot.models.values():
            if entry.pinned and entry.spec.pool == self._config.pool:
                self._dispatcher.serve(entry.spec.digest)
        for model in list(self._dispatcher.models.values()):
            current = snapshot.by_digest(model.spec.digest)
            if current is not None:
                model.model = current
            elif not model.has_work and not model.forwards:
                self._leave(model, now)
            if model.is_idle:
                self._rest(model, now)

    def _rest(self, model: ServedModel, now: float) -> None:
        """Nobody asks for it: it need not wait for room, after long enough not hold any, and after twice that none
        of the host's.
        """
        if model.state is State.WAITING:
            model.state = State.ABSENT
        idle_s = now - model.last_used
        if model.state is State.LOADED and idle_s > self._config.idle_unload_s:
            self._evictions.unload(model, "idle", now)
        elif model.is_parked and idle_s > 2 * self._config.idle_unload_s:
            self._parking.drop(model, "idle", now)

    def _warm(self, models: Iterable[Model]) -> None:
        """Let the engine import the libraries of these while nobody waits for it. All others' come with their first
        load: some take seconds and hundreds of megabytes that most machines never need.
        """
        families = sorted({model.spec.family for model in models if model.spec.bundle == "base"})
        if families:
            self._dispatcher.flights.engine("base").send({"op": "warm", "families": families})

    def _leave(self, model: ServedModel, now: float) -> None:
        if model.is_parked:
            self._parking.drop(model, "left the catalog", now)
        if model.state is State.LOADED:
            self._evictions.unload(model, "left the catalog", now, may_park=False)
        elif model.state in (State.ABSENT, State.WAITING, State.FAILED):
            del self._dispatcher.models[model.spec.digest]

    # -- files -------------------------------------------------------------------------------------------------

    def _find(self, model: ServedModel) -> None:
        model.state = State.FETCHING
        model.progress = 0.0

        def progress(share: float) -> None:
            model.progress = share  # a float is swapped whole; the beat only reports it

        self._dispatcher.preparation.find(
            model.spec, progress, lambda outcome: self._dispatcher.post(self._found, model, outcome)
        )

    def _found(self, model: ServedModel, outcome: Files | ShoalError) -> None:
        if isinstance(outcome, ShoalError):
            self._fail(model, outcome)
            return
        model.files = outcome
        model.need = outcome.need
        model.state = State.WAITING
        self._dispatcher.requests.resume(model, outcome.preparer)

    # -- room and load -----------------------------------------------------------------------------------------

    def _make_room(self, model: ServedModel, now: float) -> bool:
        """Start the load if there is room, or start making room. False: later models must wait behind this one."""
        coming = (other for other in self._dispatcher.models.values() if other.state is State.LOADING)
        if sum(other.in_host is model.in_host for other in coming) >= self._config.loads_at_once:
            return True  # those that wake do not wait for those that load, nor the other way round
        room = self._evictions.plan(model, now)
        if room.impossible:
            self._fail(model, too_large(model.spec, model.need, self._ledger.capacity))
            return True
        if room.evict or room.wait:
            return False
        self._load(model, now)
        return True

    def _load(self, model: ServedModel, now: float) -> None:
        self._ledger.reserve(model.spec.digest, model.need)
        model.state, model.progress, model.loaded_at = State.LOADING, 0.0, now
        if model.in_host:
            self._dispatcher.flights.engine(model.spec.bundle).send({"op": "wake", "digest": model.spec.digest})
            return
        self._evictions.churn.come(model.spec.digest, now)
        assert model.files is not None
        folder = model.files.folder
        message = {
            "op": "load",
            "digest": model.spec.digest,
            "spec": model.spec.to_wire(),
            "folder": str(folder) if folder else None,
        }
        try:
            self._dispatcher.flights.engine(model.spec.bundle).send(message)
        except Unsendable:
            self._ledger.release(model.spec.digest)
            self._fail(model, load_failed(model.spec, "spec"))
        except Unusable as reason:
            self._ledger.release(model.spec.digest)
            self._fail(model, bundle_unusable(model.spec, reason))

    # -- what engines say --------------------------------------------------------------------------------------

    def handle(self, message: dict[str, Any]) -> None:
        model = self._dispatcher.models[message["digest"]]
        match message["op"]:
            case "progress":
                model.progress = message["share"]
            case "loaded":
                self._loaded(model, message)
            case "woken":
                self._woken(model, message)
            case "parked":
                self._ledger.release(model.spec.digest)
                self._parking.parked(model, message["bytes"])
                model.state = State.ABSENT
            case "load_failed":
                log.warning("load failed: %s", message["message"], extra={"model": model.spec.model})
                self._ledger.release(model.spec.digest)
                self._parking.gone(model)
                self._load_failed(model, message["kind"], message["error"])
            case "unloaded":
                self._ledger.release(model.spec.digest)
                self._parking.gone(model)  # it may have been promised a place that the host had not
                model.state = State.ABSENT

    def _woken(self, model: ServedModel, message: dict[str, Any]) -> None:
        now = self._dispatcher.clock()
        model.state, model.progress = State.LOADED, 1.0
        model.loaded_at = model.last_used = now
        self._parking.woke(model, message["seconds"])

    def _loaded(self, model: ServedModel, message: dict[str, Any]) -> None:
        now = self._dispatcher.clock()
        self._ledger.settle(model.spec.digest, message["bytes"])
        model.need, model.packed, model.facts = message["bytes"], message["packed"], message["facts"]
        model.can_park = message["can_park"]
        model.wake_s = self._parking.expected_s(model)
        model.state, model.progress, model.error, model.failures = State.LOADED, 1.0, None, 0
        model.load_s, model.loaded_at, model.last_used = message["seconds"], now, now
        self._dispatcher.counters["loads"] += 1
        self._evictions.fit(model, now)
        log.info("loaded", extra={"model": model.spec.model, "bytes": model.need, "seconds": round(model.load_s, 2)})

    def end_hung(self, now: float) -> None:
        """Give up a load that does not end; only with its engine does what it holds surely go."""
        for model in self._dispatcher.models.values():
            if model.state is State.LOADING and now - model.loaded_at > self._config.load_hang_s:
                self._ledger.release(model.spec.digest)
                self._parking.gone(model)
                self._fail(model, load_failed(model.spec, "hung"))
                self._dispatcher.flights.replace(
                    model.spec.bundle, f"a load took longer than {now - model.loaded_at:.0f} s"
                )
                return

    def engine_lost(self, bundle: str) -> None:
        """What was in that engine is gone; what it was loading is tried again by who still wants it."""
        for model in self._dispatcher.models.values():
            if model.spec.bundle != bundle:
                continue
            self._parking.gone(model)
            if model.state in ON_DEVICE:
                self._ledger.release(model.spec.digest)
                was_loading = model.state is State.LOADING
                model.state = State.ABSENT
                if was_loading:
                    self._load_interrupted(model)

    def _load_failed(self, model: ServedModel, kind: str, typed: dict[str, Any] | None) -> None:
        """A model that was larger than thought gets a second try with more room, others leaving for it.

        `typed` is what the family itself has to say to callers, if it failed knowingly.
        """
        more = min(int(model.need * MORE_ROOM), self._ledger.capacity)
        if kind == "memory" and model.failures == 0 and more > model.need:
            model.failures, model.need, model.state = 1, more, State.WAITING
        else:
            self._fail(model, errors.from_wire(typed) if typed else load_failed(model.spec, kind))

    def _load_interrupted(self, model: ServedModel) -> None:
        """Once or twice may be an engine killed from outside; a load that keeps ending engines is given up."""
        if model.failures + 1 < LOADS_LOST_BEFORE_FAILING:
            model.failures += 1
        else:
            self._fail(model, load_failed(model.spec, "lost"))

    def _fail(self, model: ServedModel, error: ShoalError) -> None:
        model.failures += 1
        cooldown = min(self._config.load_cooldown_s * 2 ** (model.failures - 1), LONGEST_COOLDOWN_S)
        model.state, model.error = State.FAILED, error
        model.retry_at = self._dispatcher.clock() + cooldown
        self._dispatcher.counters["load_failures"] += 1
        log.error("model unavailable: %s", error.message, extra={"model": model.spec.model, "cooldown_s": cooldown})
        self._dispatcher.requests.refuse_all(model, error)
