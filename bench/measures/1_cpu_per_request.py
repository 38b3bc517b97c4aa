"""CPU that gateway and worker spend on a single-item request outside the forward: a model that answers at once."""

import threading
from pathlib import Path

from bench import load, texts
from bench.figure import Figure
from bench.outcome import Outcome
from bench.system import Serving, System
from bench.wire import DIALECTS

NAME = "CPU per single-item request outside the forward"
BAR = "gateway ≤ 2 ms, worker ≤ 1.5 ms, with 64 clients and with one"

GATEWAY_MS, WORKER_MS = 2.0, 1.5
ENTRIES = Path(__file__).parent.parent / "entries"
NULL = "shoal-bench/null"
SECONDS = 10.0
PROCESSES = ("gateway", "worker", "valkey")


def run(system: System) -> Figure:
    with system.serve({"SHOAL_CATALOG": str(ENTRIES)}) as serving:
        serving.warm(NULL)
        _load(serving, connections=64, seconds=2)  # queue joined, code paths warm
        many, many_rate = _per_request(serving, connections=64)
        one, one_rate = _per_request(serving, connections=1)
    holds = all(cost["gateway"] <= GATEWAY_MS and cost["worker"] <= WORKER_MS for cost in (many, one))
    shown = f"{_shown(many)} with 64 clients; {_shown(one)} with one"
    return Figure(shown, holds, f"{many_rate:.0f}/s and {one_rate:.0f}/s; valkey's own CPU: {many['valkey']:.2f} ms")


def _per_request(serving: Serving, connections: int) -> tuple[dict[str, float], float]:
    """Milliseconds of CPU by process, and the rate they were met at. What idling costs is taken off."""
    idle = _idle_share(serving)
    before = {name: serving.cpu_s(name) for name in PROCESSES}
    outcome = _load(serving, connections, SECONDS)
    spent = {name: serving.cpu_s(name) - before[name] - idle[name] * outcome.seconds for name in PROCESSES}
    return {name: cpu / outcome.good * 1e3 for name, cpu in spent.items()}, outcome.rate


def _idle_share(serving: Serving) -> dict[str, float]:
    """CPU seconds per second of each process with nothing to do: beats and polls are not a request's price."""
    seconds = 2.0
    before = {name: serving.cpu_s(name) for name in PROCESSES}
    threading.Event().wait(seconds)
    return {name: (serving.cpu_s(name) - before[name]) / seconds for name in PROCESSES}


def _load(serving: Serving, connections: int, seconds: float) -> Outcome:
    requests = [DIALECTS["native"].request(serving.url, NULL, text) for text in texts.mixed(2000)]

    def check(index: int, status: int, body: bytes) -> str | None:
        return None if status == 200 else f"status {status}: {body[:200]!r}"

    outcome = load.run(serving.url, requests, check, connections=connections, seconds=seconds)
    if outcome.wrong or outcome.unanswered:
        raise RuntimeError(f"the load did not go through: {outcome.summary()}; {outcome.wrong[:1]}")
    return outcome


def _shown(cost: dict[str, float]) -> str:
    return f"gateway {cost['gateway']:.2f} ms, worker {cost['worker']:.2f} ms"
