"""Simulated: a saturated fleet that pulls does no less than routers do, and its callers wait no longer."""

from collections.abc import Sequence

from bench.figure import Figure
from bench.sim.figures import Figures
from bench.sim.study import PLAIN, against, seeds
from bench.system import System

NAME = "simulator, 8 devices, 100 models, heavy-tailed lengths, saturated: throughput and p99 against routers"
BAR = (
    "utilisation ≥ 0.85 with each of five seeds; against every baseline throughput ≥ its own, the five together, "
    "and p99 ≤ with each; throughput ≥ 2 × the plain snapshot router's"
)

UTILISATION, TIMES_PLAIN = 0.85, 2.0


def run(system: System) -> Figure:
    ours, baselines = seeds(), against()
    utilisation = min(one.utilisation for one in ours)
    rivals = {label: (_times(ours, theirs), _longest(ours, theirs)) for label, theirs in baselines.items()}
    is_ahead = all(times >= 1 and wait <= 1 for times, wait in rivals.values())
    holds = utilisation >= UTILISATION and is_ahead and rivals[PLAIN.label][0] >= TIMES_PLAIN
    told = [
        f"{label}: {times:.3f} × (worst seed {_worst(ours, baselines[label]):.3f}) and p99 ≤ {wait:.2f} ×"
        for label, (times, wait) in rivals.items()
    ]
    by_seed = ", ".join(f"{one.throughput:,.0f}/s with p99 {one.p99_s:.1f} s" for one in ours)
    return Figure(f"utilisation ≥ {utilisation:.2f}; {'; '.join(told)}", holds, f"by seed {by_seed}")


def _times(ours: Sequence[Figures], theirs: Sequence[Figures]) -> float:
    """All that was answered in all runs: which of two policies is ahead in one of them is chance."""
    return sum(one.throughput for one in ours) / sum(other.throughput for other in theirs)


def _worst(ours: Sequence[Figures], theirs: Sequence[Figures]) -> float:
    return min(one.throughput / other.throughput for one, other in zip(ours, theirs, strict=True))


def _longest(ours: Sequence[Figures], theirs: Sequence[Figures]) -> float:
    return max(one.p99_s / other.p99_s for one, other in zip(ours, theirs, strict=True))
