"""The forward alone, in this process: every way of running it over the same texts, tokenizing included.

    python -m bench.forward [--model ID] [--texts 256] [--rounds 3] [--threads 2] [--way WAY] [--budget N]

The fastest row is the bare loop that serving is compared with; the knee is the smallest budget within 5 % of it.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bench import texts
from catalog import loader
from protocol.messages import Payload
from protocol.spec import ModelSpec
from workers.batching import batch_cost
from workers.families import Prepared, text_encoder
from workers.layers import checkpoint, linear
from workers.layers.forwards import Forward, Packed, Padded
from workers.layers.pooling import pool
from workers.weights.resolve import resolve

BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
TARGET_S = 0.25  # the longest that a batch may take on a CPU
NEAR = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    way: str
    budget: int
    texts_per_s: float
    cpu_ms: float  # per text, all threads together; other processes on the cores disturb it less
    batch_s: float  # the longest batch


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    spec = next(entry.model.spec for entry in loader.load([loader.ENTRIES]) if entry.model.spec.model == options.model)
    folder = resolve(spec, SimpleNamespace(models_folder=None, offline=False, data=options.data))
    sample = texts.mixed(options.texts)
    preparer = text_encoder.preparer(spec, folder)
    tokens = [item.tokens for item in _prepared(preparer, sample)]
    print(f"{spec.model}: {len(sample)} texts, {np.mean(tokens):.1f} tokens each, {options.threads} threads")
    ways = (way for way in _ways(spec, folder) if options.way in (None, way[0]))  # one at a time
    rows = [row for way, forward in ways for row in _sweep(way, forward, preparer, sample, options)]
    _show(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--way", help="only this one")
    parser.add_argument("--budget", type=int, help="only this one")
    parser.add_argument("--data", type=Path, default=loader.ENTRIES.parents[1] / ".shoal")
    return parser.parse_args()


def _ways(spec: ModelSpec, folder: Path) -> Iterator[tuple[str, Callable[[Sequence[np.ndarray]], Any]]]:
    """The same model, plain as transformers makes it and with its layers reordered; one in memory at a time."""
    about = checkpoint.read(spec, folder)
    for kind in ("plain", "reordered"):
        model = text_encoder.read_model(spec, about, "cpu")
        if kind == "reordered":
            linear.reorder(model)
        yield f"{kind} padded", _vectors(Padded(model), about)
        yield f"{kind} packed", _vectors(Packed(model, about.position_offset), about)


def _vectors(forward: Forward, about: checkpoint.Checkpoint) -> Callable[[Sequence[np.ndarray]], Any]:
    def run(batch: Sequence[np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            states = forward.run(batch)
            return pool(about.pooling, states.tokens, states.lengths).numpy()

    return run


def _prepared(preparer: text_encoder.TextPreparer, sample: Sequence[str]) -> list[Prepared]:
    payload = Payload([{"text": text} for text in sample])
    return [part for parts in preparer.prepare(payload) if isinstance(parts, list) for part in parts]


def _sweep(
    way: str, run: Callable[..., Any], preparer: text_encoder.TextPreparer, sample: Sequence[str], options: Any
) -> Iterator[Row]:
    for budget in [options.budget] if options.budget else BUDGETS:
        best, cpu, longest = float("inf"), float("inf"), 0.0
        for _ in range(options.rounds):
            started, worked = time.perf_counter(), time.process_time()
            seconds = []
            for batch in _batches(_prepared(preparer, sample), budget, way.endswith("packed")):
                before = time.perf_counter()
                run(batch)
                seconds.append(time.perf_counter() - before)
            total = time.perf_counter() - started
            cpu = min(cpu, time.process_time() - worked)
            if total < best:
                best, longest = total, max(seconds)
        yield Row(way, budget, len(sample) / best, 1e3 * cpu / len(sample), longest)


def _batches(prepared: Sequence[Prepared], budget: int, packed: bool) -> Iterator[list[np.ndarray]]:
    """In the order given where texts are packed, by length where they are padded."""
    batch: list[Prepared] = []
    for item in prepared if packed else sorted(prepared, key=lambda item: item.cost):
        if batch and batch_cost([entry.cost for entry in [*batch, item]], packed) > budget:
            yield [entry.inputs["ids"] for entry in batch]
            batch = []
        batch.append(item)
    yield [entry.inputs["ids"] for entry in batch]


def _show(rows: Sequence[Row]) -> None:
    for row in rows:
        speed = f"{row.texts_per_s:7.1f} texts/s  {row.cpu_ms:6.2f} ms of CPU per text"
        print(f"{row.way:18} budget {row.budget:5}  {speed}  longest batch {row.batch_s:.3f} s")
    fastest = max(rows, key=lambda row: row.texts_per_s)
    same = [row for row in rows if row.way == fastest.way]
    knee = next(row for row in same if row.texts_per_s >= NEAR * fastest.texts_per_s)
    largest = max((row.budget for row in same if row.batch_s <= TARGET_S), default=BUDGETS[0])
    print(f"fastest: {fastest.way} at {fastest.budget}, {fastest.texts_per_s:.1f} texts/s")
    print(f"knee: {knee.budget}; largest budget within {TARGET_S} s: {largest}")


if __name__ == "__main__":
    main()
