"""kill -9 of the engine, then of the worker, under load: nobody gets a wrong answer, and the service comes back."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench import load, texts
from bench.expected import Expected
from bench.figure import Figure
from bench.system import MODEL, Serving, System
from bench.wire import DIALECTS

NAME = "kill -9 of the engine, then of the worker, with 64 clients at work"
BAR = "every accepted call ends in the right vector or a typed retryable error; service back within 15 s of each"

BACK_S = 15.0
CLIENTS = 64
BEFORE_S, BETWEEN_S, AFTER_S = 8.0, 20.0, 20.0


def run(system: System) -> Figure:
    expected = Expected.of(texts.mixed(500, seed=2))
    dialect = DIALECTS["native"]
    with system.serve() as serving:
        serving.warm()
        requests = [dialect.request(serving.url, MODEL, text) for text in expected.texts]
        check = expected.check(dialect, may_be_refused=True)
        with ThreadPoolExecutor(1) as thread:
            seconds = BEFORE_S + BETWEEN_S + AFTER_S
            running = thread.submit(load.run, serving.url, requests, check, connections=CLIENTS, seconds=seconds)
            engine_killed, worker_killed = _kill_both(serving)
            outcome = running.result()
        back = {"engine": outcome.gap_after(engine_killed), "worker": outcome.gap_after(worker_killed)}
    holds = not outcome.wrong and not outcome.unanswered and all(gap <= BACK_S for gap in back.values())
    refused = len(outcome.statuses) - outcome.good
    value = f"back after {back['engine']:.1f} s and {back['worker']:.1f} s; {len(outcome.wrong)} wrong"
    note = f"{outcome.good} right, {refused} told to retry, {outcome.unanswered} unanswered"
    return Figure(value, holds, "; ".join([note, *outcome.wrong[:3]]))


def _kill_both(serving: Serving) -> tuple[float, float]:
    """When each was killed, on the monotonic clock."""
    pause = threading.Event()
    pause.wait(BEFORE_S)
    engine_killed = time.monotonic()
    os.kill(serving.engine_pids()[0], signal.SIGKILL)
    pause.wait(BETWEEN_S)
    worker_killed = time.monotonic()
    os.kill(serving.pid("worker"), signal.SIGKILL)
    return engine_killed, worker_killed
