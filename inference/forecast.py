"""How long a request would wait for its answer, from what waits in front of it and how fast workers are. Pure.

A worker runs its models' oldest work first, so what waits for its other models counts too. Work of less urgent lanes
does not: it makes way. Where the pace of a model is not known there is no forecast, and nobody is turned away.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.fleet import Fleet
from protocol.names import LANES, queue
from protocol.spec import ModelSpec

MIN_RETRY_S, MAX_RETRY_S = 0.1, 60.0
_COMING = ("loading", "waiting", "fetching")


@dataclass(frozen=True, slots=True)
class Forecast:
    """For one model and lane. Cost as gateways estimate it; `rate` is cost per second, all its workers together."""

    rate: float
    ahead: float = 0.0  # cost of the model's own work that is as urgent
    beside_s: float = 0.0  # the least that one of its workers needs for other models
    load_s: float = 0.0  # until one of them has it loaded
    batch_s: float = 0.0  # time of a full batch

    def wait_s(self, ahead: float) -> float:
        """Seconds until so much of the model's work is done."""
        return self.load_s + self.beside_s + ahead / self.rate

    def answer_s(self, ahead: float, cost: float) -> float:
        """Seconds until a request of this cost is answered: when its batch is done, and in that it is not alone."""
        return self.wait_s(ahead) + max(cost / self.rate, self.batch_s)


def retry_after(over_s: float) -> float:
    """For one who would be late by so many seconds: when to try again, in tenths of a second."""
    return min(max(math.ceil(over_s * 10) / 10, MIN_RETRY_S), MAX_RETRY_S)


def ahead_in_lane(waiting: Mapping[str, float], spec: ModelSpec, lane: str) -> float:
    """Cost in the queues of the model that are as urgent as `lane`, or more."""
    lanes = LANES[: LANES.index(lane) + 1]
    return sum(waiting.get(queue(spec.pool, spec.model, one), 0.0) for one in lanes)


@dataclass(frozen=True, slots=True)
class _Served:
    spec: ModelSpec
    workers: Mapping[str, Mapping[str, Any]]  # what each says of the model

    @property
    def rate(self) -> float:
        return sum(float(state["rate"]) for state in self.workers.values())


def forecasts(
    specs: Iterable[ModelSpec], fleet: Fleet, waiting: Mapping[str, float]
) -> dict[tuple[str, str], Forecast]:
    """By model and lane, for every model whose pace a worker knows; `waiting` is cost by queue, wherever it waits."""
    known = _states_by_digest(fleet)
    served = [_Served(spec, workers) for spec in specs if (workers := _serving(spec, known))]
    return {
        (model, lane): forecast
        for lane in LANES
        for model, forecast in _in_lane(served, {s.spec.model: ahead_in_lane(waiting, s.spec, lane) for s in served})
    }


def _in_lane(served: Sequence[_Served], ahead: Mapping[str, float]) -> Iterator[tuple[str, Forecast]]:
    own_s = {one.spec.model: ahead[one.spec.model] / one.rate for one in served}
    busy_s: defaultdict[str, float] = defaultdict(float)
    for one in served:
        for worker in one.workers:
            busy_s[worker] += own_s[one.spec.model]
    for one in served:
        model = one.spec.model
        yield (
            model,
            Forecast(
                rate=one.rate,
                ahead=ahead[model],
                beside_s=max(min(busy_s[worker] for worker in one.workers) - own_s[model], 0.0),
                load_s=min(_load_s(state) for state in one.workers.values()),
                batch_s=max(float(state.get("batch_s") or 0.0) for state in one.workers.values()),
            ),
        )


def _states_by_digest(fleet: Fleet) -> dict[str, list[tuple[str, str, Mapping[str, Any]]]]:
    """Pool, worker and state of every model that workers know the pace of."""
    found: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for beat in fleet.beats:
        for state in beat.get("models", ()) if not beat.get("draining") else ():
            if state.get("rate"):
                place = str(beat.get("pool")), str(beat.get("id")), state
                found.setdefault(str(state.get("digest")), []).append(place)
    return found


def _serving(
    spec: ModelSpec, known: Mapping[str, Sequence[tuple[str, str, Mapping[str, Any]]]]
) -> dict[str, Mapping[str, Any]]:
    """State of the model by worker: of those that have it loaded, or else of all that know its pace."""
    states = {worker: state for pool, worker, state in known.get(spec.digest, ()) if pool == spec.pool}
    return {worker: state for worker, state in states.items() if state.get("state") == "loaded"} or states


def _load_s(state: Mapping[str, Any]) -> float:
    if state.get("state") == "loaded":
        return 0.0
    if state.get("in_host"):
        return float(state.get("wake_s", 0.0))
    left = 1.0 - float(state.get("progress", 0.0)) if state.get("state") in _COMING else 1.0
    return float(state.get("load_s", 0.0)) * left
