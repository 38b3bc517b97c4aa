"""The workers' beats as Prometheus gauges, made anew for each scrape: a worker that is gone leaves no series behind."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference.fleet import Fleet

_MODEL_GAUGES = {
    "shoal_worker_model_bytes": ("Device memory a loaded model holds.", "bytes"),
    "shoal_worker_model_waiting": ("Items of a model held by a worker and not yet run.", "waiting"),
    "shoal_worker_model_waiting_cost": ("Their cost, in padded-token equivalents.", "waiting_cost"),
}


class FleetCollector(Collector):
    """One scrape's worth of the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        beats = self._fleet.beats
        yield _gauge("shoal_workers", "Live workers, by pool.", ("pool",), _count_by_pool(beats))
        used = (((_id(beat),), beat.get("memory", {}).get("used", 0)) for beat in beats)
        yield _gauge("shoal_worker_memory_used_bytes", "Device memory in use for models.", ("worker",), used)
        capacity = (((_id(beat),), beat.get("memory", {}).get("capacity", 0)) for beat in beats)
        yield _gauge("shoal_worker_memory_capacity_bytes", "Device memory for models.", ("worker",), capacity)
        parked = (((_id(beat),), beat.get("memory", {}).get("host_used", 0)) for beat in beats)
        yield _gauge("shoal_worker_host_memory_used_bytes", "The host's memory in use for models.", ("worker",), parked)
        loaded = ((key, 1.0 if model.get("state") == "loaded" else 0.0) for key, model in _models(beats))
        yield _gauge("shoal_worker_model_loaded", "1 while a worker has the model loaded.", _WORKER_MODEL, loaded)
        for name, (text, fact) in _MODEL_GAUGES.items():
            yield _gauge(name, text, _WORKER_MODEL, ((key, model.get(fact, 0)) for key, model in _models(beats)))
        pushing = (((_id(beat),), float(len(beat.get("thrashing", ())))) for beat in beats)
        yield _gauge(
            "shoal_worker_thrashing_models", "Models that push each other off the device.", ("worker",), pushing
        )
        yield _counters(beats)
        dead = [((), float(self._fleet.dead_letters))]
        yield _gauge("shoal_dead_letters", "Requests given up on that nobody has replayed or dropped.", (), dead)


_WORKER_MODEL = ("worker", "model")


def _gauge(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _counters(beats: Iterable[Mapping[str, Any]]) -> CounterMetricFamily:
    """Whatever workers count: forwards, loads, evictions and the like."""
    family = CounterMetricFamily("shoal_worker_events", "What workers counted.", labels=("worker", "event"))
    for beat in beats:
        for event, count in beat.get("counters", {}).items():
            family.add_metric((_id(beat), event), count)
    return family


def _count_by_pool(beats: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, ...], float]]:
    pools = [str(beat.get("pool", "")) for beat in beats]
    yield from (((pool,), float(pools.count(pool))) for pool in sorted(set(pools)))


def _models(beats: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for beat in beats:
        for model in beat.get("models", ()):
            yield (_id(beat), str(model.get("model", ""))), model


def _id(beat: Mapping[str, Any]) -> str:
    return str(beat.get("id", ""))
