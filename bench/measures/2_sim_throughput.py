"""Simulated: a saturated fleet that pulls does no less than routers do, and its callers wait no longer."""

from bench.figure import Figure
from bench.sim.study import PLAIN, saturated
from bench.system import System

NAME = "simulator, 8 devices, 100 models, heavy-tailed lengths, saturated: throughput and p99 against routers"
BAR = "utilisation ≥ 0.85; throughput ≥ and p99 ≤ every baseline's; throughput ≥ 2 × the plain snapshot router's"

UTILISATION, TIMES_PLAIN = 0.85, 2.0


def run(system: System) -> Figure:
    shoal, baselines = saturated()
    behind = [
        f"behind {label}: {other.throughput:,.0f}/s, p99 {other.p99_s:.2f} s"
        for label, other in baselines.items()
        if other.throughput > shoal.throughput or other.p99_s < shoal.p99_s
    ]
    times_plain = shoal.throughput / baselines[PLAIN.label].throughput
    holds = shoal.utilisation >= UTILISATION and not behind and times_plain >= TIMES_PLAIN
    value = f"utilisation {shoal.utilisation:.2f}; {shoal.throughput:,.0f}/s, p99 {shoal.p99_s:.2f} s"
    best = max(baselines.values(), key=lambda other: other.throughput)
    note = f"{times_plain:.2f} × plain; best baseline {best.throughput:,.0f}/s with p99 {best.p99_s:.2f} s"
    return Figure(value, holds, "; ".join([note, *behind]))
