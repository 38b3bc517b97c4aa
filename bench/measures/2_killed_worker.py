"""kill -9 of one of two workers that are both busy: how long the calls that it held wait for their answers."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from bench import pair
from bench.figure import Figure
from bench.outcome import Outcome
from bench.system import Serving, System

NAME = "kill -9 of one of two busy workers: its work is answered elsewhere"
BAR = "within 5 s on Redis, 10 s on RabbitMQ; all answered, all right"

BAR_S = {"Redis": 5.0, "RabbitMQ": 10.0}
KILLS = 2
BEFORE_S, AFTER_S = 4.0, 15.0


def run(system: System) -> Figure:
    found = {"Redis": _outcomes(system, {})}
    with pair.rabbitmq() as url:
        if url is not None:
            found["RabbitMQ"] = _outcomes(system, {"SHOAL_BROKER_URL": url})
    outcomes = [outcome for some in found.values() for outcome, _ in some]
    longest = {broker: max(_longest(*one) for one in some) for broker, some in found.items()}
    failed = [complaint for outcome in outcomes for complaint in outcome.wrong]
    unanswered = sum(outcome.unanswered for outcome in outcomes)
    holds = all(longest[broker] <= BAR_S[broker] for broker in longest) and not failed and not unanswered
    value = ", ".join(f"{broker} {seconds:.1f} s" for broker, seconds in longest.items())
    note = f"{KILLS} kills each; {len(failed)} failed, {unanswered} unanswered"
    missing = "".join(f"; {broker} not run: there is none here" for broker in BAR_S if broker not in found)
    return Figure(value, holds, "; ".join([note + missing, *failed[:3]]))


def _outcomes(system: System, settings: dict[str, str]) -> list[tuple[Outcome, float]]:
    """Of each run, with the moment of the kill."""
    found = []
    with pair.serving(system, 2, settings) as serving:
        for _ in range(KILLS):
            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(pair.run, serving, BEFORE_S + AFTER_S)
                time.sleep(BEFORE_S)
                killed = _kill(serving)
                found.append((running.result(), killed))
    return found


def _kill(serving: Serving) -> float:
    pid = serving.pid("worker1")
    assert any(beat["pid"] == pid and beat["queues"] for beat in serving.beats()), "it holds nothing"
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def _longest(outcome: Outcome, killed: float) -> float:
    """From the kill to the last answer to a call that was on its way then."""
    at = killed - outcome.started
    calls = zip(outcome.ended, outcome.took, strict=True)
    return max((ended - at for ended, took in calls if ended - took <= at < ended), default=0.0)
