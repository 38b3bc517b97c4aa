"""One scenario under one policy, from the first arrival until everything is answered."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.sim.fleet import Card, make_models
from bench.sim.plain_worker import PlainDispatcher
from bench.sim.queues import SharedQueues
from bench.sim.routers import Choose, Routers, shortest, single_choice, two_choices
from bench.sim.timeline import Timeline
from bench.sim.traces import BULK, TRACES, Arrival, Load
from bench.sim.worker import SimulatedWorker
from catalog.snapshot import Model, Snapshot
from protocol.messages import Request
from workers.deliveries import Delivery
from workers.dispatcher import Dispatcher

BULK_TIMEOUT_S = 3600.0
SAMPLE_S = 0.5
PUBLISH_S = 0.005


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens; requests that arrive in the first `warm_s` count for throughput only."""

    trace: str = "steady"
    models: int = 100
    devices: int = 8
    level: float = 1.0
    seconds: float = 40.0
    warm_s: float = 15.0
    timeout_s: float = 30.0
    exponent: float = 1.0
    seed: int = 1
    card: Card = field(default_factory=Card)


@dataclass(frozen=True, slots=True)
class Policy:
    """Who takes a request: Shoal's workers themselves, or a router on snapshots `stale_s` old."""

    name: str
    choose: Choose | None = None
    stale_s: float = 0.0
    counts_own: bool = True
    dispatcher: type[Dispatcher] = Dispatcher

    @property
    def label(self) -> str:
        return self.name if self.choose is None else f"{self.name}, {self.stale_s * 1e3:.0f} ms"


SHOAL = Policy("shoal")


def router(name: str, stale_s: float) -> Policy:
    """The plain one is a single choice in front of plain workers; in front of all others stand Shoal's own."""
    return {
        "two choices": Policy(name, two_choices, stale_s),
        "shortest": Policy(name, shortest, stale_s),
        "single choice": Policy(name, single_choice, stale_s, counts_own=False),
        "plain": Policy(name, single_choice, stale_s, counts_own=False, dispatcher=PlainDispatcher),
    }[name]


@dataclass(frozen=True, slots=True)
class Answer:
    published: float
    ended: float
    cost: int
    lane: str
    is_error: bool


@dataclass(slots=True)
class Outcome:
    """Everything that figures are made of."""

    scenario: Scenario
    policy: Policy
    models: Sequence[Model]
    answers: list[Answer] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # digests in the order of arrival
    oldest_waits_s: list[float] = field(default_factory=list)
    workers: list[SimulatedWorker] = field(default_factory=list)


Policies = SharedQueues | Routers


def simulate(scenario: Scenario, policy: Policy) -> Outcome:
    models = make_models(scenario.models, scenario.seed)
    timeline = Timeline()
    outcome = Outcome(scenario, policy, models)

    def settled(worker: SimulatedWorker, delivery: Delivery, is_error: bool) -> None:
        request = delivery.request
        outcome.answers.append(Answer(request.published, timeline.now, request.cost, request.lane, is_error))
        taking.settled(worker, delivery)

    snapshot = Snapshot(1, tuple(models))
    outcome.workers = [
        SimulatedWorker(number, scenario.card, snapshot, timeline, settled, policy.dispatcher)
        for number in range(scenario.devices)
    ]
    taking = _policy(policy, outcome, timeline)
    timeline.every(SAMPLE_S, lambda: _sample(taking, outcome, timeline), first=scenario.warm_s)
    load = Load(
        models, scenario.card, scenario.devices, scenario.level, scenario.seconds, scenario.seed, scenario.exponent
    )
    _arrive(iter(TRACES[scenario.trace](load)), outcome, taking.publish, timeline)
    timeline.run(scenario.seconds + scenario.timeout_s + 1.0)
    return outcome


def _policy(policy: Policy, outcome: Outcome, timeline: Timeline) -> Policies:
    scenario, workers, models = outcome.scenario, outcome.workers, outcome.models
    if policy.choose is None:
        return SharedQueues(workers, models, timeline, scenario.seed)
    return Routers(
        workers, models, scenario.card, timeline, scenario.seed, policy.stale_s, policy.choose, policy.counts_own
    )


def _sample(taking: Policies, outcome: Outcome, timeline: Timeline) -> None:
    if timeline.now < outcome.scenario.seconds:
        outcome.oldest_waits_s.append(taking.oldest_wait_s(timeline.now))


def _arrive(
    arrivals: Iterator[Arrival], outcome: Outcome, publish: Callable[[Sequence[Request]], None], timeline: Timeline
) -> None:
    """Gateways publish what has come since they last did, whoever takes it."""
    ids = itertools.count()
    coming = deque(itertools.islice(arrivals, 1))

    def gather() -> None:
        requests = []
        while coming and coming[0].at <= timeline.now:
            requests.append(_request(coming.popleft(), f"request-{next(ids)}", outcome))
            coming.extend(itertools.islice(arrivals, 1))
        if requests:
            publish(requests)

    timeline.every(PUBLISH_S, gather, first=PUBLISH_S)


def _request(arrival: Arrival, request_id: str, outcome: Outcome) -> Request:
    spec = outcome.models[arrival.model].spec
    outcome.asked.append(spec.digest)
    return Request(
        id=request_id,
        primitive="encode",
        model=spec.model,
        digest=spec.digest,
        cost=arrival.cost,
        count=1,
        deadline=arrival.at + (BULK_TIMEOUT_S if arrival.lane == BULK else outcome.scenario.timeout_s),
        published=arrival.at,
        lane=arrival.lane,
    )
