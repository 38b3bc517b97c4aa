"""Live calls to a model beside a bulk job that saturates it."""

import asyncio
import json
import statistics

import uvloop

from bench import load
from bench.figure import Figure
from bench.outcome import Outcome
from bench.system import Serving, System
from bench.wire import http_request

NAME = "interactive calls beside a saturating bulk job: p99"
BAR = "≤ its idle p99 + 1.5 × the longest allowed batch, none failed"

MODEL = "shoal-bench/busy"
ENTRY = {
    "id": MODEL,
    "description": "Takes as long as its batches are large.",
    "family": "fake",
    "primitives": ["encode"],
    "outputs": ["dense"],
    "dims": {"dense": 32},
    "load": {"forward_s": 0.02, "s_per_cost": 0.001},
}
LONGEST_BATCH_S = 0.25  # what a learned budget aims at on a CPU
ALLOWED = 1.5 * LONGEST_BATCH_S
TEXT = "ten words make an item of cost ten for this"
LIVE, BULK, BULK_ITEMS = 4, 64, 8
ROUNDS, SECONDS = 3, 8.0


def run(system: System) -> Figure:
    catalog = system.folder()
    (catalog / "busy.yaml").write_text(json.dumps(ENTRY))
    idle, busy, bulk = [], [], []
    with system.serve({"SHOAL_CATALOG": str(catalog), "SHOAL_DEVICE": "cpu"}) as serving:
        serving.warm(MODEL)
        _together(serving, SECONDS)  # the pace is learned
        for _ in range(ROUNDS):
            idle.append(load.run(serving.url, [_call(serving, 1)], _check, connections=LIVE, seconds=SECONDS))
            live, job = _together(serving, SECONDS)
            busy.append(live)
            bulk.append(job)
    alone, beside = (statistics.median(one.percentile(0.99) for one in some) for some in (idle, busy))
    failed = [complaint for outcome in (*idle, *busy, *bulk) for complaint in outcome.wrong]
    items = sum(outcome.good for outcome in bulk) * BULK_ITEMS / (ROUNDS * SECONDS)
    value = f"{beside * 1e3:.0f} ms, idle {alone * 1e3:.0f} ms, allowed {(alone + ALLOWED) * 1e3:.0f} ms"
    medians = f"p50 {busy[-1].percentile(0.5) * 1e3:.0f} ms, idle {idle[-1].percentile(0.5) * 1e3:.0f} ms"
    note = f"{medians}; the job does {items:.0f} items/s; {len(failed)} failed"
    return Figure(value, beside <= alone + ALLOWED and not failed, "; ".join([note, *failed[:3]]))


def _together(serving: Serving, seconds: float) -> tuple[Outcome, Outcome]:
    async def both() -> tuple[Outcome, Outcome]:
        live = load.fire(serving.url, [_call(serving, 1)], _check, connections=LIVE, seconds=seconds)
        job = [_call(serving, BULK_ITEMS, "bulk")]
        return await asyncio.gather(live, load.fire(serving.url, job, _check, connections=BULK, seconds=seconds))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(both())


def _call(serving: Serving, items: int, lane: str = "interactive") -> bytes:
    body = json.dumps({"items": [{"text": TEXT}] * items}).encode()
    headers = {"Content-Type": "application/json", "X-Shoal-Lane": lane}
    return http_request(serving.url, f"/v1/encode/{MODEL}", body, headers)


def _check(index: int, status: int, body: bytes) -> str | None:
    return None if status == 200 else f"status {status}: {body[:200]!r}"
