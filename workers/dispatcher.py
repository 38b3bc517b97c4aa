"""The heart of a worker: one thread that owns queueing, batching and residency of one device, without locks.

It waits on one selector for three things: what other threads put into its inbox (deliveries, cancels, prepared items,
found files), what engines send, and the clock. After each it schedules: loads first, then forwards.

A request's way through here: `_accept` → files found (`loading`) → `_prepare` → `_enqueue` → `_launch` → `_collect` →
the outbox. Everything a caller can meet on the way is a ShoalError answered by `_refuse`.
"""

import collections
import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from catalog.snapshot import Snapshot
from protocol.errors import Cancelled, Expired, ModelNotFound, ShoalError
from protocol.names import LANES
from protocol.replies import Reply
from workers.batching import Entry, form_batch
from workers.config import WorkerConfig
from workers.deliveries import Delivery, Outbox
from workers.families import Prepared, Preparer
from workers.flights import Flights
from workers.jobs import Job
from workers.loading import Loading
from workers.prepare import Items, Preparation
from workers.served import ServedModel, State

log = logging.getLogger("shoal.dispatcher")

TICK_S = 0.25
# a gateway may know a model a moment before this worker's snapshot does
UNKNOWN_GRACE_S = 5.0
COUNTERS = (
    "forwards",
    "items",
    "cost",
    "loads",
    "load_failures",
    "evictions",
    "engine_restarts",
    "retries",
    "expired",
    "cancelled",
    "errors",
)


class Dispatcher:
    """Thread-safe are start, submit, cancel, budget, status, drain and post; the rest runs on the dispatcher's thread.

    `Loading` (models on and off the device) and `Flights` (batches at the engines) are its two other parts.
    """

    def __init__(self, config: WorkerConfig, catalog: Callable[[], Snapshot], outbox: Outbox) -> None:
        self.config = config
        self.catalog = catalog
        self._outbox = outbox
        self._inbox: collections.deque[tuple[Callable[..., None], tuple[Any, ...]]] = collections.deque()
        self.selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self._wake_read, selectors.EVENT_READ)
        self.preparation = Preparation(config)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.models: dict[str, ServedModel] = {}
        self._jobs: dict[str, Job] = {}
        self._unknown: list[Job] = []
        self.flights = Flights(self)
        self.loading = Loading(self)
        self._draining_until: float | None = None
        self._next_tick = 0.0
        self._status: dict[str, Any] = {"models": [], "engines": [], "counters": self.counters}
        self._budgets: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    # -- what other threads call -------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, delivery: Delivery) -> None:
        self.post(self._accept, delivery)

    def cancel(self, request_id: str) -> None:
        """Answer this request with Cancelled unless it is done; what is on the device finishes unread."""
        self.post(self._cancel, request_id)

    def budget(self, model: str) -> int:
        """Cost of a full batch of `model` on this device, as far as known."""
        return self._budgets.get(model, self.config.budget)

    def status(self) -> dict[str, Any]:
        """What the beat publishes; rebuilt a few times a second, never changed after."""
        return self._status

    def drain(self, grace_s: float) -> None:
        """Stop launching, finish what is on the device within `grace_s`, give the rest back, end the engines."""
        self.post(self._drain, time.monotonic() + grace_s)
        self._thread.join(grace_s + 10)

    def post(self, handler: Callable[..., None], *args: Any) -> None:
        """Run `handler(*args)` on the dispatcher thread, soon."""
        self._inbox.append((handler, args))
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._wake_write, b"\0")

    # -- the loop ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._draining_until is None or self._still_flying():
                self._wait()
                self._handle_inbox()
                now = time.monotonic()
                if now >= self._next_tick:
                    self._tick(now)
                self._schedule(now)
        except Exception:  # the thread owns the device: without it the worker must end and be restarted
            log.critical("dispatcher died", exc_info=True)
        self._finish()

    def _wait(self) -> None:
        timeout = 0.0 if self._inbox else max(self._next_tick - time.monotonic(), 0.0)
        for key, events in self.selector.select(timeout):
            if key.data is None:
                os.read(self._wake_read, 65536)
            else:
                self.flights.serve_engine(key.data, events)

    def _handle_inbox(self) -> None:
        while self._inbox:
            handler, args = self._inbox.popleft()
            handler(*args)

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_S
        self._drop_late(now)
        self._retry_unknown(now)
        self.flights.end_hung(now)
        if self._draining_until is None:
            self.loading.tick(now)
        self._publish_status(now)

    def _schedule(self, now: float) -> None:
        if self._draining_until is not None:
            return
        self.loading.advance(now)
        while self.flights.has_room:
            model = max(
                (model for model in self.models.values() if model.can_run),
                key=lambda model: model.urgency(now),
                default=None,
            )
            if model is None:
                return
            self._launch(model, now)

    # -- one request -------------------------------------------------------------------------------------------

    def _accept(self, delivery: Delivery) -> None:
        request, now = delivery.request, time.monotonic()
        if request.id in self._jobs:
            self._jobs[request.id].deliveries.append(delivery)  # redelivered to us while we still work on it
            return
        job = Job([delivery], arrival=now, expires=now + request.deadline - time.time())
        self._jobs[request.id] = job
        if self._draining_until is not None:
            self._give_back([job])
        elif job.expires <= now:
            self._refuse(job, _expired())
        else:
            self._place(job, now)

    def _place(self, job: Job, now: float) -> None:
        model = self.serve(job.request.digest)
        if model is None:
            self._unknown.append(job)
        elif model.state is State.FAILED and model.error is not None and now < model.retry_at:
            self._refuse(job, model.error)
        elif model.files is None:
            model.arrivals.append(job)
        else:
            self._prepare(model, job, model.files.preparer)

    def serve(self, digest: str) -> ServedModel | None:
        """The model of this digest, known from now on; None when the catalog has no such model."""
        if digest not in self.models:
            entry = self.catalog().by_digest(digest)
            if entry is None:
                return None
            self.models[digest] = ServedModel(entry)
        return self.models[digest]

    def _prepare(self, model: ServedModel, job: Job, preparer: Preparer) -> None:
        job.preparer = preparer
        self.preparation.prepare(
            job.deliveries[0], preparer, lambda outcome: self.post(self._enqueue, model, job, outcome)
        )

    def _enqueue(self, model: ServedModel, job: Job, outcome: Items | ShoalError) -> None:
        if job.done:
            return
        if isinstance(outcome, ShoalError):
            self._refuse(job, outcome)
            return
        job.prepare_s = outcome.seconds
        job.expect(outcome.prepared, outcome.options)
        lane = LANES.index(job.request.lane)
        model.entries += [
            Entry(job, index, item, job.arrival, lane)
            for index, item in enumerate(outcome.prepared)
            if isinstance(item, Prepared)
        ]
        if job.missing == 0:
            self._complete(job)

    def _launch(self, model: ServedModel, now: float) -> None:
        if model.suspects:
            batch = model.suspects.pop(0)
        else:
            batch = form_batch(
                model.entries,
                now=now,
                budget=self._batch_budget(model),
                max_items=model.spec.max_items,
                packed=model.packed,
            )
            taken = set(map(id, batch))
            model.entries = [entry for entry in model.entries if id(entry) not in taken]
        batch = [entry for entry in batch if not entry.job.done]
        if not batch:
            return
        fresh = {entry.job.id: entry.job for entry in batch if entry.job.launched is None}.values()
        for job in fresh:
            job.launched = now
        self._outbox.started([job.deliveries[0] for job in fresh])
        self.flights.send(model, batch, now)

    def collect(self, batch: Iterable[Entry], outcomes: Iterable[Any], seconds: float) -> None:
        """One forward's outcomes, raw outputs or errors, back to their jobs."""
        for entry, outcome in zip(batch, outcomes, strict=True):
            job: Job = entry.job
            if job.done:
                continue
            job.forward_s += seconds
            if job.put(entry.index, outcome):
                self._complete(job)

    def _complete(self, job: Job) -> None:
        self._forget(job)
        for delivery in job.deliveries:
            self._outbox.reply(delivery, lambda: job.reply(self.config.worker_id))

    def _refuse(self, job: Job, error: ShoalError) -> None:
        self._forget(job)
        if error.status >= 500:
            self.counters["errors"] += 1
        reply = Reply(job.id, error=error.to_wire(), timing=job.timing(), worker=self.config.worker_id)
        for delivery in job.deliveries:
            self._outbox.reply(delivery, lambda: reply)

    def refuse_all(self, model: ServedModel, error: ShoalError) -> None:
        """Answer everything that waits for `model` with `error`."""
        for job in self._waiting_for(model):
            self._refuse(job, error)
        model.arrivals, model.entries, model.suspects = [], [], []

    def resume(self, model: ServedModel, preparer: Preparer) -> None:
        """The preparer is there: prepare what has waited for it."""
        arrivals, model.arrivals = model.arrivals, []
        for job in arrivals:
            if not job.done:
                self._prepare(model, job, preparer)

    def _forget(self, job: Job) -> None:
        job.done = True
        del self._jobs[job.id]

    # -- the clock, leaving ------------------------------------------------------------------------------------

    def _cancel(self, request_id: str) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self.counters["cancelled"] += 1
            self._refuse(job, Cancelled("the request was cancelled"))

    def _drop_late(self, now: float) -> None:
        for job in [job for job in self._jobs.values() if job.expires <= now]:
            self.counters["expired"] += 1
            self._refuse(job, _expired())
        for model in self.models.values():
            model.arrivals = [job for job in model.arrivals if not job.done]
            model.entries = [entry for entry in model.entries if not entry.job.done]

    def _retry_unknown(self, now: float) -> None:
        waiting, self._unknown = self._unknown, []
        for job in waiting:
            if job.done:
                continue
            if now - job.arrival > UNKNOWN_GRACE_S:
                self._refuse(job, ModelNotFound("the model is no longer in the catalog", param="model"))
            else:
                self._place(job, now)

    def _waiting_for(self, model: ServedModel) -> list[Job]:
        entries = [*model.entries, *(entry for part in model.suspects for entry in part)]
        jobs = [*model.arrivals, *(entry.job for entry in entries)]
        return [job for job in dict.fromkeys(jobs) if not job.done]

    def _give_back(self, jobs: Iterable[Job]) -> None:
        leaving = list(jobs)
        for job in leaving:
            self._forget(job)
        self._outbox.give_back([delivery for job in leaving for delivery in job.deliveries])

    def _drain(self, until: float) -> None:
        self._draining_until = until
        flying = self.flights.jobs()
        self._give_back([job for job in self._jobs.values() if job not in flying])

    def _still_flying(self) -> bool:
        assert self._draining_until is not None
        return bool(self.flights.jobs()) and time.monotonic() < self._draining_until

    def _finish(self) -> None:
        self._give_back(list(self._jobs.values()))
        self.preparation.stop()
        self.flights.close()

    # -- reporting ---------------------------------------------------------------------------------------------

    def _batch_budget(self, model: ServedModel) -> int:
        return model.pace.budget(model.spec.budget or self.config.budget, self.config.target_s)

    def _publish_status(self, now: float) -> None:
        self._budgets = {model.spec.model: self._batch_budget(model) for model in self.models.values()}
        self._status = {
            "id": self.config.worker_id,
            "pool": self.config.pool,
            "device": self.config.device,
            "pid": os.getpid(),
            "memory": self.loading.memory(),
            "engines": self.flights.engines(),
            "models": [model.status(now) for model in self.models.values()],
            "waiting": len(self._jobs),
            "draining": self._draining_until is not None,
            "counters": dict(self.counters),
        }


def _expired() -> Expired:
    return Expired("the request's deadline passed before its work was done")
