"""How much of the fastest bare loop is left when the same texts come one by one over HTTP from 64 clients."""

import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass

from bench import load, texts
from bench.expected import Expected
from bench.figure import Figure
from bench.outcome import Outcome
from bench.system import MODEL, ROOT, Serving, System
from bench.wire import DIALECTS
from workers.devices import cpu_count

NAME = "64 single-text clients for 60 s: no error, lost or swapped reply; throughput"
BAR = "≥ 0.8 of the fastest bare loop over the same texts"

SHARE = 0.8
CLIENTS, SECONDS, ROUNDS = 64, 60.0, 3
TEXTS, SWEPT_TEXTS = 2000, 512
POLICIES = ("ACTIVE", "PASSIVE")  # how OpenMP threads wait; which is faster depends on what else runs


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running the model in a loop of its own, tokenizing included."""

    texts_per_s: float
    way: str
    budget: int
    policy: str


def run(system: System) -> Figure:
    return compare(system, SECONDS)


def compare(system: System, seconds: float) -> Figure:
    """A sweep finds the fastest bare loop; then it and the product take turns, so that whatever else the machine does
    meets both."""
    expected = Expected.of(texts.mixed(TEXTS))
    serving = system.shared()
    serving.warm()
    fastest = max((_bare(policy, SWEPT_TEXTS) for policy in POLICIES), key=lambda way: way.texts_per_s)
    bare, served = [], []
    for _ in range(ROUNDS):
        bare.append(_bare(fastest.policy, TEXTS, fastest).texts_per_s)
        served.append(_serve(serving, expected, seconds))
    share = statistics.median(outcome.rate for outcome in served) / statistics.median(bare)
    failed = [complaint for outcome in served for complaint in outcome.wrong]
    unanswered = sum(outcome.unanswered for outcome in served)
    good = sum(outcome.good for outcome in served)
    value = f"{share:.2f} of bare; {len(failed)} wrong, {unanswered} unanswered of {good}"
    rates = ", ".join(f"{one:.0f} bare then {other.rate:.0f} served" for one, other in zip(bare, served, strict=True))
    waited = f"p50 {served[-1].percentile(0.5):.2f} s, p99 {served[-1].percentile(0.99):.2f} s"
    note = f"texts/s: {rates}; bare is {fastest.way} at {fastest.budget}, OpenMP {fastest.policy}; {waited}"
    return Figure(value, share >= SHARE and not failed and not unanswered, "; ".join([note, *failed[:3]]))


def _serve(serving: Serving, expected: Expected, seconds: float) -> Outcome:
    dialect = DIALECTS["native"]
    requests = [dialect.request(serving.url, MODEL, text) for text in expected.texts]
    return load.run(serving.url, requests, expected.check(dialect), connections=CLIENTS, seconds=seconds)


def _bare(policy: str, count: int, only: Way | None = None) -> Way:
    """The fastest way over so many texts, in a process of its own while the product idles."""
    command = [sys.executable, "-m", "bench.forward", "--model", MODEL, "--texts", str(count), "--rounds", "1"]
    command += ["--threads", str(cpu_count())]
    command += ["--way", only.way, "--budget", str(only.budget)] if only else []
    environment = {**os.environ, "OMP_WAIT_POLICY": policy}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=1800)
    found = re.search(r"^fastest: (.*) at (\d+), ([\d.]+) texts/s$", done.stdout, re.M)
    if found is None:
        raise RuntimeError(f"the bare loop named no fastest way: {done.stdout[-500:]}")
    return Way(float(found[3]), found[1], int(found[2]), policy)
