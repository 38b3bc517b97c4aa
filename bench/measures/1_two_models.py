"""Two models that do not fit together take turns on the device, for as long as anyone asks."""

import itertools
import json
import urllib.request
from pathlib import Path

import numpy as np
import psutil

from bench.figure import Figure
from bench.system import Serving, System
from workers.families.fake import vector

NAME = "two models under a memory budget that fits one"
BAR = "both answer rightly, evictions are counted, memory and Redis keys do not grow"

ENTRIES = Path(__file__).parent.parent / "entries"
MODELS = ("shoal-bench/large-a", "shoal-bench/large-b")
BUDGET = 300 << 20  # each of the two claims 200 MiB
WARM_TURNS, TURNS = 20, 200
GROWTH_BYTES = 8 << 20  # what an allocator may keep over so many turns
DIMS = 384


def run(system: System) -> Figure:
    settings = {"SHOAL_CATALOG": str(ENTRIES), "SHOAL_MEMORY_BYTES": str(BUDGET)}
    with system.serve(settings) as serving:
        wrong = _take_turns(serving, WARM_TURNS)
        before, keys_before = _memory(serving), _keys(serving)
        wrong += _take_turns(serving, TURNS)
        growth = {name: used - before[name] for name, used in _memory(serving).items()}
        evictions = serving.counters()["evictions"]
        keys = _keys(serving) - keys_before
    grown = {name: size for name, size in growth.items() if size > GROWTH_BYTES}
    holds = not wrong and not grown and keys <= 0 and evictions >= (WARM_TURNS + TURNS) - 2
    sizes = ", ".join(f"{name} {size / (1 << 20):+.1f} MiB" for name, size in growth.items())
    value = f"{TURNS} turns, {evictions} evictions, {wrong} wrong, {keys:+d} Redis keys"
    return Figure(value, holds, f"resident memory over the last {TURNS} turns: {sizes}")


def _take_turns(serving: Serving, turns: int) -> int:
    """Ask the two in turn; how many answers were wrong."""
    asked = zip(itertools.cycle(MODELS), range(turns), strict=False)
    return sum(not _answers(serving, model, f"turn {number} of {model}") for model, number in asked)


def _answers(serving: Serving, model: str, text: str) -> bool:
    body = json.dumps({"items": [{"text": text}]}).encode()
    request = urllib.request.Request(f"{serving.url}/v1/encode/{model}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        values = json.loads(response.read())["items"][0]["dense"]["values"]
    return bool(np.allclose(values, vector(text, DIMS), atol=1e-6))


def _memory(serving: Serving) -> dict[str, int]:
    serving.next_beat()
    pids = {name: serving.pid(name) for name in ("gateway", "worker", "valkey")}
    engines = {f"engine {number}": pid for number, pid in enumerate(serving.engine_pids(), 1)}
    return {name: psutil.Process(pid).memory_info().rss for name, pid in {**pids, **engines}.items()}


def _keys(serving: Serving) -> int:
    with serving.redis() as client:
        return int(client.dbsize())
