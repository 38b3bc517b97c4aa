"""Vectors equal sentence-transformers' on the same weights, alone and in whatever batch they meet."""

import numpy as np

from bench import load, texts
from bench.expected import Expected
from bench.figure import Figure
from bench.system import MODEL, Serving, System
from bench.wire import DIALECTS

NAME = "vectors equal sentence-transformers', for 500 texts of 1 to 2,000 words"
BAR = "cosine > 0.9999, alone and in mixed batches"

TEXTS, ALONE = 500, 100
LEAST = 0.9999
TOGETHER = 16  # items of one call


def run(system: System) -> Figure:
    expected = Expected.of(texts.spread(TEXTS))
    serving = system.shared()
    serving.warm()
    alone = _cosines(serving, expected, range(0, TEXTS, TEXTS // ALONE), connections=1)
    mixed = _cosines(serving, expected, range(TEXTS), connections=32)
    together = _together(serving, expected)
    least = min(alone.min(), mixed.min(), together.min())
    shown = f"one at a time {alone.min():.7f}, 32 at once {mixed.min():.7f}, {TOGETHER} a call {together.min():.7f}"
    return Figure(f"least cosine {least:.7f}", bool(least > LEAST), shown)


def _cosines(serving: Serving, expected: Expected, chosen: range, connections: int) -> np.ndarray:
    """One call per text; a cosine for each, 0 where there was no vector."""
    dialect = DIALECTS["native"]
    cosines = np.zeros(len(chosen))

    def check(index: int, status: int, body: bytes) -> str | None:
        if status != 200:
            return f"status {status}: {body[:200]!r}"
        cosines[index] = dialect.vectors(body)[0] @ expected.vectors[chosen[index]]
        return None

    requests = [dialect.request(serving.url, MODEL, expected.texts[number]) for number in chosen]
    load.run(serving.url, requests, check, connections=connections, seconds=300, count=len(requests))
    return cosines


def _together(serving: Serving, expected: Expected) -> np.ndarray:
    """Many texts a call, short and long in the same one."""
    dialect = DIALECTS["openai"]
    groups = [range(start, TEXTS, TEXTS // TOGETHER + 1) for start in range(TEXTS // TOGETHER + 1)]
    cosines = np.zeros(TEXTS)

    def check(index: int, status: int, body: bytes) -> str | None:
        if status != 200:
            return f"status {status}: {body[:200]!r}"
        for number, vector in zip(groups[index], dialect.vectors(body), strict=True):
            cosines[number] = vector @ expected.vectors[number]
        return None

    requests = [dialect.request(serving.url, MODEL, [expected.texts[number] for number in group]) for group in groups]
    load.run(serving.url, requests, check, connections=4, seconds=300, count=len(requests))
    return cosines
