"""The heart of a worker: one thread that owns queueing, batching and residency of one device, without locks.

It waits on one selector for three things: what other threads put into its inbox (deliveries, cancels, prepared items,
found files), what engines send, and the clock. After each it schedules: loads first, then forwards.

A request's way through here: `requests.accept`, `loading` finds the model's files, `preparation` turns items into
entries, `_schedule` picks a model and a batch, `flights` carries it to the engine and back, `requests.collect` replies.
"""

import collections
import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from catalog.snapshot import Snapshot
from protocol.clock import now as agreed_time
from workers.batching import Pace, batch_cost, form_batch
from workers.ceilings import KeptCeilings, Remembering
from workers.claims import Standing
from workers.config import WorkerConfig
from workers.deliveries import Delivery, Outbox
from workers.engines import Engine, EngineProcess
from workers.evictions import Evictions
from workers.excess import excess
from workers.flights import Flights
from workers.loading import Loading
from workers.parking import Parking
from workers.prepare import Preparation, Preparing
from workers.requests import Requests
from workers.served import ServedModel
from workers.standing import here, standing
from workers.turns import Turns

log = logging.getLogger("shoal.dispatcher")

TICK_S = 0.25
COUNTERS = (
    "forwards",
    "items",
    "cost",
    "loads",
    "load_failures",
    "parks",
    "wakes",
    "evictions",
    "engine_restarts",
    "retries",
    "expired",
    "cancelled",
    "errors",
)


@dataclass(frozen=True, slots=True)
class Outside:
    """What the dispatcher needs of the world besides its inbox: the time, somebody to prepare, engines, a memory."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = agreed_time  # what gateways write deadlines in
    preparation: Callable[[WorkerConfig], Preparing] = Preparation
    engine: Callable[[WorkerConfig, str, selectors.BaseSelector], Engine] = EngineProcess
    ceilings: Callable[[WorkerConfig], Remembering] = KeptCeilings


class Dispatcher:
    """Thread-safe are start, submit, cancel, shed, budget, status, standing, drain and post; others are its thread's.

    Its parts share its thread and its models: Requests (jobs), Loading, Evictions and Parking (models on and off the
    device) and Flights (batches at the engines).
    """

    def __init__(
        self,
        config: WorkerConfig,
        catalog: Callable[[], Snapshot],
        outbox: Outbox,
        outside: Outside | None = None,
    ) -> None:
        """`outside` replaces the clock, the thread pools and the engine processes, as the simulator does."""
        self.config = config
        self.outside = outside or Outside()
        self.clock = self.outside.clock
        self.catalog = catalog
        self.outbox = outbox
        self._inbox: collections.deque[tuple[Callable[..., None], tuple[Any, ...]]] = collections.deque()
        self.selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.selector.register(self._wake_read, selectors.EVENT_READ)
        self.preparation = self.outside.preparation(config)
        self.ceilings = self.outside.ceilings(config)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.models: dict[str, ServedModel] = {}
        self.turns = Turns()
        self.requests = Requests(self, outbox)
        self.flights = Flights(self)
        self.parking = Parking(self)
        self.evictions = Evictions(self)
        self.loading = Loading(self)
        self._draining_until: float | None = None
        self._next_tick = 0.0
        self._started = time.time()
        self._status: dict[str, Any] = {"models": [], "engines": [], "counters": self.counters}
        self._budgets: dict[str, int] = {}
        self._standing = Standing()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    # -- what other threads call -------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, delivery: Delivery) -> None:
        self.post(self.requests.accept, delivery)

    def cancel(self, request_id: str) -> None:
        """Answer this request with Cancelled unless it is done; what is on the device finishes unread."""
        self.post(self.requests.cancel, request_id)

    def budget(self, model: str) -> int:
        """Cost of a full batch of `model` on this device, as far as known."""
        return self._budgets.get(model, self.config.budget)

    def status(self) -> dict[str, Any]:
        """What the beat publishes; rebuilt a few times a second, never changed after."""
        return self._status

    def standing(self) -> Standing:
        """What claims are decided on; a new one as soon as other models are here, and a few times a second."""
        return self._standing

    def shed(self, model: str, lane: str, cost: int) -> None:
        """Give back what of this queue exceeds `cost` and is not on the device."""
        self.post(lambda: self.requests.give_back(excess(self.requests.jobs.values(), model, lane, cost)))

    def drain(self, grace_s: float) -> None:
        """Stop launching, finish what is on the device within `grace_s`, give the rest back, end the engines."""
        self.post(self._drain, self.clock() + grace_s)
        self._thread.join(grace_s + 10)

    def post(self, handler: Callable[..., None], *args: Any) -> None:
        """Run `handler(*args)` on the dispatcher thread, soon."""
        self._inbox.append((handler, args))
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._wake_write, b"\0")

    @property
    def is_draining(self) -> bool:
        return self._draining_until is not None

    # -- the loop ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._draining_until is None or self._still_flying():
                self._wait()
                self.step()
        except Exception:  # the thread owns the device: without it the worker must end and be restarted
            log.critical("dispatcher died", exc_info=True)
        self._finish()

    def step(self) -> None:
        """Take in all that has happened, then schedule."""
        while self._inbox:
            handler, args = self._inbox.popleft()
            handler(*args)
        now = self.clock()
        if now >= self._next_tick:
            self._tick(now)
        self._schedule(now)

    def _wait(self) -> None:
        timeout = 0.0 if self._inbox else max(self._next_tick - self.clock(), 0.0)
        for key, events in self.selector.select(timeout):
            if key.data is None:
                os.read(self._wake_read, 65536)
            else:
                self.flights.serve_engine(key.data, events)

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_S
        self.requests.drop_late(now)
        self.requests.retry_unknown(now)
        self.flights.end_hung(now)
        self.loading.end_hung(now)
        if not self.is_draining:
            self.loading.tick(now)
        self._publish_status(now)

    def _schedule(self, now: float) -> None:
        if self.is_draining:
            return
        self.loading.advance(now)
        if here(self) != self._standing.here:
            self._standing = standing(self, now)
        while self.flights.has_room(now):
            runnable = [
                model
                for model in self.models.values()
                if model.can_run and not self.flights.is_stuck(model.spec.bundle, now)
            ]
            claims = [model.claim(now, self._batch_budget(model)) for model in runnable]
            if not claims:
                return
            chosen = self.turns.next(claims)
            self.turns.charge(claims, chosen, self._launch(self.models[chosen.digest], now))

    def _launch(self, model: ServedModel, now: float) -> float:
        """Send the model's next batch; answers the seconds it will take, as far as known."""
        if model.suspects:
            batch = model.suspects.pop(0)
        else:
            batch = form_batch(
                model.entries,
                now=now,
                budget=self._batch_budget(model),
                max_items=model.spec.max_items,
                packed=model.packed,
                shares=model.shares,
            )
            model.shares.charge(model.entries, batch)
            taken = set(map(id, batch))
            model.entries = [entry for entry in model.entries if id(entry) not in taken]
        batch = [entry for entry in batch if not entry.job.done]
        if not batch:
            return 0.0
        fresh = {entry.job.id: entry.job for entry in batch if entry.job.launched is None}.values()
        for job in fresh:
            job.launched = now
        self.outbox.started([job.deliveries[0] for job in fresh])
        self.flights.send(model, batch, now)
        predicted = model.pace.predict(batch_cost([entry.cost for entry in batch], model.packed))
        return self.config.target_s if predicted is None else predicted

    def serve(self, digest: str) -> ServedModel | None:
        """The model of this digest, known from now on; None when the catalog has no such model."""
        if digest not in self.models:
            entry = self.catalog().by_digest(digest)
            if entry is None:
                return None
            pace = Pace(ceiling=self.ceilings.get(entry.spec))
            self.models[digest] = ServedModel(entry, last_used=self.clock(), pace=pace)
        return self.models[digest]

    def _drain(self, until: float) -> None:
        self._draining_until = until
        flying = self.flights.jobs()
        self.requests.give_back([job for job in self.requests.jobs.values() if job not in flying])

    def _still_flying(self) -> bool:
        assert self._draining_until is not None
        return bool(self.flights.jobs()) and self.clock() < self._draining_until

    def _finish(self) -> None:
        self.requests.give_back(list(self.requests.jobs.values()))
        self.preparation.stop()
        self.ceilings.stop()
        self.flights.close()

    # -- reporting ---------------------------------------------------------------------------------------------

    def _batch_budget(self, model: ServedModel) -> int:
        return model.pace.budget(model.spec.budget or self.config.budget, self.config.target_s)

    def _publish_status(self, now: float) -> None:
        self._standing = standing(self, now)
        self._budgets = {model.spec.model: self._batch_budget(model) for model in self.models.values()}
        self._status = {
            "id": self.config.worker_id,
            "pool": self.config.pool,
            "device": self.config.device,
            "pid": os.getpid(),
            "started": self._started,
            "memory": self.evictions.memory(),
            "leaving_order": self.evictions.leaving_order(now),
            "thrashing": self.evictions.thrashing(now),
            "engines": self.flights.engines(),
            "models": [model.status(now, self._budgets[model.spec.model]) for model in self.models.values()],
            "waiting": len(self.requests.jobs),
            "draining": self.is_draining,
            "counters": dict(self.counters),
        }
