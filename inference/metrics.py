"""What Prometheus may know. Labels are bounded: routes and codes are ours, models come from the catalog or are unknown.

With PROMETHEUS_MULTIPROC_DIR set, the processes of one gateway share their numbers through files in that folder, so
that a scrape of any of them shows the sum of all.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
    values,
)

from inference.backlog import Backlog
from inference.calls import Outcome
from inference.fleet import Fleet
from inference.fleet_metrics import FleetCollector
from inference.queue_metrics import QueueCollector
from protocol.errors import ShoalError

disable_created_metrics()  # they would double the number of series

UNKNOWN_MODEL = "unknown"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

HTTP = Counter("shoal_http_requests", "HTTP requests answered.", ("route", "status"))
ERRORS = Counter("shoal_errors", "Errors answered, by code.", ("route", "code"))
CALLS = Counter("shoal_calls", "Calls that reached dispatch.", ("primitive", "model", "outcome"))
ITEMS = Counter("shoal_items", "Items answered.", ("primitive", "model"))
TOKENS = Counter("shoal_tokens", "Tokens that models read.", ("primitive", "model"))
REFUSED = Counter("shoal_calls_refused", "Calls refused because they could not be answered in time.", ("model", "lane"))
REFUSED_COST = Counter("shoal_refused_cost", "Their cost.", ("model", "lane"))
TRUNCATED = Counter("shoal_inputs_truncated", "Items that were cut to their model's length.", ("model",))
IN_FLIGHT = Gauge("shoal_calls_in_flight", "Calls being dispatched.", ("primitive",), multiprocess_mode="livesum")
CALL_SECONDS = Histogram("shoal_call_seconds", "Time in dispatch.", ("primitive", "model"), buckets=_SECONDS)
QUEUE_SECONDS = Histogram("shoal_queue_seconds", "Time queued at broker and worker.", ("model",), buckets=_SECONDS)


@dataclass(slots=True)
class Measured:
    """Filled in by dispatch as it learns more."""

    model: str = UNKNOWN_MODEL
    outcome: Outcome | None = None


@contextlib.contextmanager
def measure(primitive: str) -> Iterator[Measured]:
    """Count and time one call, however it ends."""
    measured = Measured()
    started = time.perf_counter()
    in_flight = IN_FLIGHT.labels(primitive)
    in_flight.inc()
    ended = "abandoned"  # the caller left
    try:
        yield measured
        ended = "ok"
    except ShoalError as error:
        ended = error.code
        raise
    except Exception:
        ended = ShoalError.code
        raise
    finally:
        in_flight.dec()
        CALLS.labels(primitive, measured.model, ended).inc()
        CALL_SECONDS.labels(primitive, measured.model).observe(time.perf_counter() - started)
        if measured.outcome is not None:
            _count_outcome(primitive, measured.model, measured.outcome)


def _count_outcome(primitive: str, model: str, outcome: Outcome) -> None:
    ITEMS.labels(primitive, model).inc(len(outcome.results))
    TOKENS.labels(primitive, model).inc(outcome.tokens)
    QUEUE_SECONDS.labels(model).observe(outcome.timing.get("queue", 0.0) / 1000)
    truncated = sum(1 for result in outcome.results if result.get("truncated"))
    if truncated:
        TRUNCATED.labels(model).inc(truncated)


def exposition(fleet: Fleet, backlogs: Sequence[Backlog]) -> bytes:
    """All of it as Prometheus text; where processes share their numbers, the sum of all."""
    registry: CollectorRegistry = REGISTRY
    if values.ValueClass is not values.MutexValue:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
    workers = CollectorRegistry()
    workers.register(FleetCollector(fleet))
    workers.register(QueueCollector(backlogs))
    return generate_latest(registry) + generate_latest(workers)
