"""A second worker comes to a model that keeps the first one busy."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from bench import pair
from bench.figure import Figure
from bench.system import Serving, System

NAME = "a worker that joins takes its share"
BAR = "2 s after it is ready it does ≥ 0.4 of what is done by two, none failed"

WITHIN_S = 2.0
SHARE = 0.4
ALONE_S, TOGETHER_S, STARTING_S = 8.0, 12.0, 30.0


def run(system: System) -> Figure:
    with pair.serving(system, workers=1) as serving, ThreadPoolExecutor(1) as thread:
        running = thread.submit(pair.run, serving, ALONE_S + STARTING_S + TOGETHER_S)
        time.sleep(ALONE_S)
        with pair.joining(serving, system.folder()) as ready:
            time.sleep(WITHIN_S)
            before = _items(serving)
            time.sleep(TOGETHER_S)
            done = _items(serving) - before
            outcome = running.result()
    share = done[pair.JOINER] / done.total()
    joined = ready - outcome.started
    alone = outcome.rate_between(2.0, ALONE_S)
    together = outcome.rate_between(joined + WITHIN_S, joined + WITHIN_S + TOGETHER_S)
    note = f"{alone:.0f} requests/s by one worker, {together:.0f} by two; {len(outcome.wrong)} failed"
    holds = share >= SHARE and not outcome.wrong and not outcome.unanswered
    return Figure(f"{share:.2f} of what is done", holds, "; ".join([note, *outcome.wrong[:3]]))


def _items(serving: Serving) -> "Counter[str]":
    """Items done by each worker, up to a second ago."""
    return Counter({beat["id"]: beat["counters"]["items"] for beat in serving.beats()})
