"""Simulated: a saturated fleet that pulls does no less than routers do, and its callers wait no longer."""

from collections.abc import Sequence
from statistics import median

from bench.figure import Figure
from bench.sim.figures import Figures
from bench.sim.study import PLAIN, against, seeds
from bench.system import System

NAME = "simulator, 8 devices, 100 models, heavy-tailed lengths, saturated: throughput and p99 against routers"
BAR = (
    "utilisation ≥ 0.85 with each of five seeds; by the median of them, against every baseline, "
    "throughput ≥ and p99 ≤ its own, throughput ≥ 2 × the plain snapshot router's"
)

UTILISATION, TIMES_PLAIN = 0.85, 2.0


def run(system: System) -> Figure:
    ours, baselines = seeds(), against()
    utilisation = min(one.utilisation for one in ours)
    times = {label: _times(ours, theirs) for label, theirs in baselines.items()}
    waits = {label: median(_waits(ours, theirs)) for label, theirs in baselines.items()}
    behind = [label for label in baselines if median(times[label]) < 1 or waits[label] > 1]
    rivals = [f"{label}: {_spread(times[label])} × and p99 {waits[label]:.2f} ×" for label in baselines]
    by_seed = ", ".join(f"{one.throughput:,.0f}/s with p99 {one.p99_s:.1f} s" for one in ours)
    value = f"utilisation ≥ {utilisation:.2f}; {'; '.join(rivals)}"
    holds = utilisation >= UTILISATION and not behind and median(times[PLAIN.label]) >= TIMES_PLAIN
    return Figure(value, holds, f"by seed {by_seed}")


def _times(ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[float]:
    return [one.throughput / other.throughput for one, other in zip(ours, theirs, strict=True)]


def _waits(ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[float]:
    return [one.p99_s / other.p99_s for one, other in zip(ours, theirs, strict=True)]


def _spread(times: Sequence[float]) -> str:
    return f"{median(times):.3g} (worst {min(times):.3g})"
