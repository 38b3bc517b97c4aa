"""One outcome in figures."""

from dataclasses import dataclass

from bench.sim.belady import fewest_loads
from bench.sim.fleet import size_of
from bench.sim.traces import BULK, INTERACTIVE
from bench.sim.world import Outcome


@dataclass(frozen=True, slots=True)
class Figures:
    """Waits are of interactive requests that arrived after the warm-up; one that was refused counts as it ended."""

    trace: str
    policy: str
    stale_s: float
    throughput: float  # cost answered a second, over the whole run
    bulk_throughput: float
    p50_s: float
    p99_s: float
    longest_s: float
    oldest_wait_s: float  # the longest that something unanswered had waited, as sampled
    longest_held_s: float  # from a worker's taking to the start of the forward
    utilisation: float  # share of the time after the warm-up in which a forward ran
    refused: int
    late_s: float  # the most by which any answer missed its deadline
    loads: int
    reloads: int  # loads of what that device had had before
    fewest_loads: int  # size-aware Belady's, for the order in which each device ran its batches
    fewest_reloads: int
    fifo_loads: int  # size-aware Belady's, for all requests in order of arrival on one device of all memory

    @property
    def reload_ratio(self) -> float:
        return self.reloads / max(self.fewest_reloads, 1)


def figures(outcome: Outcome) -> Figures:
    scenario = outcome.scenario
    waits = sorted(
        answer.ended - answer.published
        for answer in outcome.answers
        if answer.lane == INTERACTIVE and scenario.warm_s <= answer.published < scenario.seconds
    )
    late = [
        answer.ended - answer.published - scenario.timeout_s for answer in outcome.answers if answer.lane == INTERACTIVE
    ]
    loads, fewest, distinct = _loads(outcome)
    return Figures(
        trace=scenario.trace,
        policy=outcome.policy.name,
        stale_s=outcome.policy.stale_s,
        throughput=_throughput(outcome, INTERACTIVE),
        bulk_throughput=_throughput(outcome, BULK),
        p50_s=_percentile(waits, 0.5),
        p99_s=_percentile(waits, 0.99),
        longest_s=waits[-1] if waits else 0.0,
        oldest_wait_s=max(outcome.oldest_waits_s, default=0.0),
        longest_held_s=max(worker.longest_held_s for worker in outcome.workers),
        utilisation=_utilisation(outcome),
        refused=sum(answer.is_error for answer in outcome.answers),
        late_s=max(late, default=0.0),
        loads=loads,
        reloads=loads - distinct,
        fewest_loads=fewest,
        fewest_reloads=fewest - distinct,
        fifo_loads=_fifo_loads(outcome),
    )


def _throughput(outcome: Outcome, lane: str) -> float:
    seconds = outcome.scenario.seconds
    done = (a.cost for a in outcome.answers if a.lane == lane and a.ended < seconds and not a.is_error)
    return sum(done) / seconds


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def _utilisation(outcome: Outcome) -> float:
    start, end = outcome.scenario.warm_s, outcome.scenario.seconds
    engines = [engine for worker in outcome.workers for engine in worker.engines]
    busy = sum(max(0.0, min(ended, end) - max(started, start)) for e in engines for started, ended in e.busy)
    return busy / ((end - start) * outcome.scenario.devices)


def _loads(outcome: Outcome) -> tuple[int, int, int]:
    """As they were, the fewest for the same order of batches, and how many were of a model new to its device."""
    sizes, capacity = _sizes(outcome), outcome.scenario.card.memory_bytes
    engines = [engine for worker in outcome.workers for engine in worker.engines]
    return (
        sum(len(engine.loads) for engine in engines),
        sum(fewest_loads(engine.order, sizes, capacity) for engine in engines),
        sum(len(set(engine.order)) for engine in engines),
    )


def _fifo_loads(outcome: Outcome) -> int:
    scenario = outcome.scenario
    return fewest_loads(outcome.asked, _sizes(outcome), scenario.card.memory_bytes * scenario.devices)


def _sizes(outcome: Outcome) -> dict[str, int]:
    return {model.spec.digest: size_of(model.spec) for model in outcome.models}
