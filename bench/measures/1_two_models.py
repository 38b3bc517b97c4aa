"""Two models that do not fit together take turns on the device, for as long as anyone asks."""

import itertools
import json
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from bench.figure import Figure
from bench.system import MODEL, Serving, System

NAME = "two models under a memory budget that fits one"
BAR = "both answer rightly, evictions are counted, memory and Redis keys do not grow"

ENTRIES = Path(__file__).parent.parent / "entries"
WARM_TURNS = 20
TEXT = "the quick brown fox jumps over the lazy dog"
SAME = 0.9999
STILL_S = 5.0
NOISE = 1 << 20


@dataclass(frozen=True, slots=True)
class Pair:
    """`growth` is what an allocator may keep over so many turns; fakes all give one text the same vector."""

    name: str
    models: tuple[str, str]
    budget: int
    turns: int
    growth: int
    differ: bool = True


PAIRS = (
    # 87 and 66 MiB of weights
    Pair("real encoders", (MODEL, "sentence-transformers/paraphrase-MiniLM-L3-v2"), 120 << 20, 40, 48 << 20),
    # 200 MiB each, claimed and not used
    Pair("fakes", ("shoal-bench/large-a", "shoal-bench/large-b"), 300 << 20, 200, 8 << 20, differ=False),
)


def run(system: System) -> Figure:
    shown, notes, holds = [], [], True
    for pair in PAIRS:
        with system.serve({"SHOAL_CATALOG": str(ENTRIES), "SHOAL_MEMORY_BYTES": str(pair.budget)}) as serving:
            wrong = _take_turns(serving, pair, WARM_TURNS)
            before, keys_before = _settled_memory(serving), _keys(serving)
            wrong += _take_turns(serving, pair, pair.turns)
            growth = {name: used - before.get(name, 0) for name, used in _memory(serving).items()}
            keys, evictions = _keys(serving) - keys_before, serving.counters()["evictions"]
        grown = any(size > pair.growth for size in growth.values())
        holds &= not wrong and not grown and keys <= 0 and evictions >= WARM_TURNS + pair.turns - 2
        shown.append(f"{pair.name}: {pair.turns} turns, {evictions} evictions, {wrong} wrong, {keys:+d} Redis keys")
        notes.append(", ".join(f"{name} {size / (1 << 20):+.1f} MiB" for name, size in growth.items()))
    return Figure("; ".join(shown), holds, f"resident memory over the turns: {'; '.join(notes)}")


def _take_turns(serving: Serving, pair: Pair, turns: int) -> int:
    """Ask the two in turn; how many answers were not what the model said at first, or what the other one says."""
    first: dict[str, np.ndarray] = {}
    wrong = 0
    for model, _ in zip(itertools.cycle(pair.models), range(turns), strict=False):
        found = _vector(serving, model)
        others = [vector for name, vector in first.items() if name != model and pair.differ]
        same = float(found @ first.setdefault(model, found))
        wrong += same < SAME or any(float(found @ other) > SAME for other in others)
    return wrong


def _vector(serving: Serving, model: str) -> np.ndarray:
    body = json.dumps({"items": [{"text": TEXT}]}).encode()
    request = urllib.request.Request(f"{serving.url}/v1/encode/{model}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        values = json.loads(response.read())["items"][0]["dense"]["values"]
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


def _memory(serving: Serving) -> dict[str, int]:
    serving.next_beat()
    pids = {name: serving.pid(name) for name in ("gateway", "worker", "valkey")}
    engines = {f"engine {number}": pid for number, pid in enumerate(serving.engine_pids(), 1)}
    return {name: psutil.Process(pid).memory_info().rss for name, pid in {**pids, **engines}.items()}


def _settled_memory(serving: Serving) -> dict[str, int]:
    """When it has stood still for a while: an idle engine imports its libraries soon after the start."""
    memory, since = _memory(serving), time.monotonic()
    while time.monotonic() - since < STILL_S:
        now = _memory(serving)
        if any(abs(now[name] - memory.get(name, 0)) > NOISE for name in now):
            memory, since = now, time.monotonic()
    return memory


def _keys(serving: Serving) -> int:
    with serving.redis() as client:
        return int(client.dbsize())
