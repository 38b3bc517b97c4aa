"""What waits, as Prometheus gauges, made anew for each scrape. Queues in which nothing waits have no series."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference.backlog import Backlog

_LABELS = ("model", "lane")
_GAUGES: tuple[tuple[str, str, Callable[[Backlog], float | None]], ...] = (
    (
        "shoal_queue_requests",
        "Requests that wait or run, at the broker and at workers.",
        lambda one: one.total.messages,
    ),
    (
        "shoal_queue_cost",
        "Their cost as gateways estimate it, in padded-token equivalents.",
        lambda one: one.total.cost,
    ),
    ("shoal_queue_oldest_seconds", "Age of the oldest request that waits.", lambda one: one.oldest_s),
    ("shoal_predicted_wait_seconds", "What a request that comes now would wait.", lambda one: one.predicted_wait_s),
)


class QueueCollector(Collector):
    """One scrape's worth of queues."""

    def __init__(self, backlogs: Sequence[Backlog]) -> None:
        self._backlogs = [one for one in backlogs if one.total.messages or one.predicted_wait_s]

    def collect(self) -> Iterable[Metric]:
        for name, text, read in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for one in self._backlogs:
                value = read(one)
                if value is not None:
                    family.add_metric((one.spec.model, one.lane), value)
            yield family
