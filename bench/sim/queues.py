"""Shoal's own way: one queue per model and lane, from which workers take what they can run.

The rules are those of the broker side of a worker: credit of two batches of cost per queue, a look at a queue whenever
something was published to it or answered from it, and now and then a look at the queues of models it does not have.
"""

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.sim.fleet import size_of
from bench.sim.survey import Survey
from bench.sim.timeline import Timeline
from bench.sim.worker import SimulatedWorker
from catalog.snapshot import Model
from protocol import names
from protocol.messages import Payload, Request
from workers.batching import LANE_WEIGHTS
from workers.claims import Offer, Standing, best_claim
from workers.deliveries import Delivery
from workers.standing import standing, takes

BATCHES_HELD = 2  # as in workers.consumer, which cannot be imported without Celery
LOOK_S = 0.05
BEAT_S = 1.0


@dataclass(slots=True)
class Queue:
    name: str
    model: Model
    lane: int
    waiting: deque[Request] = field(default_factory=deque)
    cost: int = 0

    def put(self, request: Request) -> None:
        self.waiting.append(request)
        self.cost += request.cost

    def pop(self) -> Request:
        request = self.waiting.popleft()
        self.cost -= request.cost
        return request

    def waited_s(self, now: float) -> float:
        return now - self.waiting[0].published


class SharedQueues:
    """A broker and the broker side of every worker."""

    def __init__(
        self, workers: Sequence[SimulatedWorker], models: Iterable[Model], timeline: Timeline, seed: int
    ) -> None:
        self._workers = workers
        self._timeline = timeline
        self._source = random.Random(seed)
        self._queues: dict[str, Queue] = {}
        for model in models:
            for lane, lane_name in enumerate(names.LANES):
                name = names.queue("default", model.spec.model, lane_name)
                self._queues[name] = Queue(name, model, lane)
        self._backlogged: dict[str, Queue] = {}  # those with messages
        self._held_cost: list[Counter[str]] = [Counter() for _ in workers]
        self._held_items: list[Counter[str]] = [Counter() for _ in workers]
        self._survey = Survey()
        self._pulling: set[int] = set()
        timeline.every(BEAT_S, lambda: self._survey.hear(workers), first=BEAT_S)
        for worker in workers:
            self._look_now_and_then(worker)

    def publish(self, requests: Sequence[Request]) -> None:
        """All workers that have the model are woken; who is first is chance."""
        named: dict[str, Queue] = {}
        for request in requests:
            queue = self._queues[names.queue("default", request.model, request.lane)]
            queue.put(request)
            self._backlogged[queue.name] = named[queue.name] = queue
        workers = list(self._workers)
        self._source.shuffle(workers)
        for worker in workers:
            self._take(worker, [queue for queue in named.values() if queue.waiting and self._has(worker, queue)])

    def settled(self, worker: SimulatedWorker, delivery: Delivery) -> None:
        """Acknowledgements travel to the broker side, which then looks for more."""
        self._held_cost[worker.number][delivery.receipt] -= delivery.request.cost
        self._held_items[worker.number][delivery.receipt] -= 1
        if worker.number not in self._pulling:
            self._pulling.add(worker.number)
            self._timeline.at(self._timeline.now, self._pull, worker)

    def oldest_wait_s(self, now: float) -> float:
        return max((queue.waited_s(now) for queue in self._backlogged.values() if queue.lane == 0), default=0.0)

    # -- what a worker has -------------------------------------------------------------------------------------

    def _has(self, worker: SimulatedWorker, queue: Queue) -> bool:
        return takes(worker.dispatcher, queue.model.spec.digest)

    def _pull(self, worker: SimulatedWorker) -> None:
        self._pulling.discard(worker.number)
        self._take(worker, [queue for queue in self._backlogged.values() if self._has(worker, queue)])

    def _take(self, worker: SimulatedWorker, queues: Sequence[Queue]) -> None:
        taken = [delivery for queue in queues for delivery in self._pop(worker, queue)]
        if taken:
            worker.take(taken)

    def _pop(self, worker: SimulatedWorker, queue: Queue) -> Iterable[Delivery]:
        cost, items = self._held_cost[worker.number], self._held_items[worker.number]
        limit = BATCHES_HELD * worker.dispatcher.budget(queue.model.spec.model)
        while queue.waiting and (not items[queue.name] or cost[queue.name] + queue.waiting[0].cost <= limit):
            request = queue.pop()
            cost[queue.name] += request.cost
            items[queue.name] += 1
            yield Delivery(request, load=lambda: Payload([]), receipt=queue.name)
        if not queue.waiting:
            self._backlogged.pop(queue.name, None)

    # -- what it would have to load ----------------------------------------------------------------------------

    def _look_now_and_then(self, worker: SimulatedWorker) -> None:
        first = LOOK_S * worker.number / len(self._workers)
        self._timeline.every(LOOK_S, lambda: self._look(worker), first)

    def _look(self, worker: SimulatedWorker) -> None:
        if not self._backlogged:
            return
        now = self._timeline.now
        stands = standing(worker.dispatcher, now)
        if not stands.can_load:
            return
        here = [queue for queue in self._backlogged.values() if queue.model.spec.model in stands.here]
        heads = [queue.waited_s(now) * LANE_WEIGHTS[0] for queue in here if queue.lane == 0]
        others = [queue for queue in self._backlogged.values() if queue.model.spec.model not in stands.here]
        offers = (self._offer(worker, stands, queue, now) for queue in others)
        claim = best_claim(offers, max([stands.pressing, *heads]))
        if claim is not None:
            self._take(worker, [self._queues[claim.queue]])

    def _offer(self, worker: SimulatedWorker, stands: Standing, queue: Queue, now: float) -> Offer:
        known = self._survey.model(queue.model.spec.model)
        return Offer(
            queue=queue.name,
            waited_s=queue.waited_s(now),
            backlog_s=queue.cost / known.rate if known.rate else 0.0,
            load_s=known.load_s,
            lost_s=stands.lost_s(known.size or size_of(queue.model.spec)),
            lane=queue.lane,
            held_elsewhere=bool(known.holders - {worker.number}),
        )
