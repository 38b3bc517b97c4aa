"""The requests a worker holds, from delivery to reply. Everything a caller can meet here is a ShoalError."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from protocol.errors import Cancelled, Expired, ModelNotFound, ShoalError
from protocol.names import LANES
from protocol.replies import Reply
from workers.batching import Entry
from workers.deliveries import Delivery, Outbox
from workers.families import Preparer
from workers.jobs import Job, at_item
from workers.prepare import Items
from workers.served import ServedModel

if TYPE_CHECKING:
    from workers.dispatcher import Dispatcher

# a gateway may know a model a moment before this worker's snapshot does
UNKNOWN_GRACE_S = 5.0


class Requests:
    """Part of the dispatcher, on its thread: jobs by id, until each is answered or given back."""

    def __init__(self, dispatcher: "Dispatcher", outbox: Outbox) -> None:
        self._dispatcher = dispatcher
        self._outbox = outbox
        self.jobs: dict[str, Job] = {}
        self._unknown: list[Job] = []

    def accept(self, delivery: Delivery) -> None:
        request, now = delivery.request, self._dispatcher.clock()
        if request.id in self.jobs:
            self.jobs[request.id].deliveries.append(delivery)  # redelivered to us while we still work on it
            return
        wall = self._dispatcher.outside.wall()
        job = Job([delivery], arrival=now, expires=now + request.deadline - wall)
        job.waited_s = max(wall - request.published, 0.0)
        self.jobs[request.id] = job
        if self._dispatcher.is_draining:
            self.give_back([job])
        elif job.expires <= now:
            self.refuse(job, _expired())
        else:
            self._place(job, now)

    def _place(self, job: Job, now: float) -> None:
        model = self._dispatcher.serve(job.request.digest)
        if model is None:
            self._unknown.append(job)
            return
        model.demand.add(now)
        if error := model.failure(now):
            self.refuse(job, error)
        elif model.files is None:
            model.arrivals.append(job)
        else:
            self._prepare(model, job, model.files.preparer)

    def _prepare(self, model: ServedModel, job: Job, preparer: Preparer) -> None:
        job.preparer = preparer
        self._dispatcher.preparation.prepare(
            job.deliveries[0], preparer, lambda outcome: self._dispatcher.post(self._enqueue, model, job, outcome)
        )

    def _enqueue(self, model: ServedModel, job: Job, outcome: Items | ShoalError) -> None:
        if job.done:
            return
        if isinstance(outcome, ShoalError):
            self.refuse(job, outcome)
            return
        if error := model.failure(self._dispatcher.clock()):
            self.refuse(job, error)
            return
        job.prepare_s = outcome.seconds
        job.expect(outcome.prepared, outcome.options)
        lane = LANES.index(job.request.lane)
        model.entries += [
            Entry(job, index, prepared, job.arrival, lane, job.request.key, part=part)
            for index, parts in enumerate(outcome.prepared)
            if not isinstance(parts, ShoalError)
            for part, prepared in enumerate(parts)
        ]
        if job.missing == 0:
            self._complete(job)

    def collect(self, batch: Iterable[Entry], outcomes: Iterable[Any], seconds: float) -> None:
        """One forward's outcomes, raw outputs or errors, back to their jobs."""
        entries = list(batch)
        for job in {entry.job for entry in entries}:
            job.forward_s += seconds
        for entry, outcome in zip(entries, outcomes, strict=True):
            job = entry.job
            if job.done:
                continue
            if isinstance(outcome, ShoalError) and not job.items_fail_alone:
                self.refuse(job, at_item(outcome, entry.index))
            elif job.put(entry.index, entry.part, outcome):
                self._complete(job)

    def _complete(self, job: Job) -> None:
        self._forget(job)
        for delivery in job.deliveries:
            self._outbox.reply(delivery, lambda: job.reply(self._dispatcher.config.worker_id))

    def refuse(self, job: Job, error: ShoalError) -> None:
        self._forget(job)
        if error.status >= 500:
            self._dispatcher.counters["errors"] += 1
        reply = Reply(
            job.id,
            error=error.to_wire(),
            timing=job.timing(self._dispatcher.clock()),
            worker=self._dispatcher.config.worker_id,
        )
        for delivery in job.deliveries:
            self._outbox.reply(delivery, lambda: reply)

    def refuse_all(self, model: ServedModel, error: ShoalError) -> None:
        """Answer everything that waits for `model` with `error`."""
        for job in self._waiting_for(model):
            self.refuse(job, error)
        model.arrivals, model.entries, model.suspects = [], [], []

    def resume(self, model: ServedModel, preparer: Preparer) -> None:
        """The preparer is there: prepare what has waited for it."""
        arrivals, model.arrivals = model.arrivals, []
        for job in arrivals:
            if not job.done:
                self._prepare(model, job, preparer)

    def _forget(self, job: Job) -> None:
        job.done = True
        del self.jobs[job.id]

    def cancel(self, request_id: str) -> None:
        job = self.jobs.get(request_id)
        if job is not None:
            self._dispatcher.counters["cancelled"] += 1
            self.refuse(job, Cancelled("the request was cancelled"))

    def drop_late(self, now: float) -> None:
        for job in [job for job in self.jobs.values() if job.expires <= now]:
            if job.may_be_kept:
                self._keep(job, now)
                continue
            self._dispatcher.counters["expired"] += 1
            self.refuse(job, _expired())
        for model in self._dispatcher.models.values():
            model.arrivals = [job for job in model.arrivals if not job.done]
            model.entries = [entry for entry in model.entries if not entry.job.done]

    def _keep(self, job: Job, now: float) -> None:
        """Go on past the deadline, for as long again at most: what the device has begun is not thrown away."""
        assert job.launched is not None
        wall, more_s = self._dispatcher.outside.wall(), max(job.request.deadline - job.request.published, 0.0)
        job.is_kept, job.expires = True, now + more_s
        for delivery in job.deliveries:
            self._outbox.keep(delivery, wall - (now - job.launched), wall + more_s)

    def retry_unknown(self, now: float) -> None:
        waiting, self._unknown = self._unknown, []
        for job in waiting:
            if job.done:
                continue
            if now - job.arrival > UNKNOWN_GRACE_S:
                self.refuse(job, ModelNotFound("the model is no longer in the catalog", param="model"))
            else:
                self._place(job, now)

    def _waiting_for(self, model: ServedModel) -> list[Job]:
        entries = [*model.entries, *(entry for part in model.suspects for entry in part)]
        jobs = [*model.arrivals, *(entry.job for entry in entries)]
        return [job for job in dict.fromkeys(jobs) if not job.done]

    def give_back(self, jobs: Iterable[Job]) -> None:
        leaving = list(jobs)
        for job in leaving:
            self._forget(job)
        self._outbox.give_back([delivery for job in leaving for delivery in job.deliveries])


def _expired() -> Expired:
    return Expired("the request's deadline passed before its work was done")
