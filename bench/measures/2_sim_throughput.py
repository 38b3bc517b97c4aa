"""Simulated: a saturated fleet that pulls does no less than routers do, and its callers wait no longer."""

from collections.abc import Sequence
from statistics import median

from bench.figure import Figure
from bench.sim.figures import Figures
from bench.sim.study import PLAIN, SEEDS, against, seeds
from bench.system import System

NAME = "simulator, 8 devices, 100 models, heavy-tailed lengths, saturated: throughput and p99 against routers"
BAR = (
    "with each of five seeds utilisation ≥ 0.85, throughput ≥ and p99 ≤ every baseline's, "
    "throughput ≥ 2 × the plain snapshot router's"
)

UTILISATION, TIMES_PLAIN = 0.85, 2.0


def run(system: System) -> Figure:
    ours, baselines = seeds(), against()
    utilisation = min(one.utilisation for one in ours)
    plain = _times(ours, baselines[PLAIN.label])
    best = [min(of_seed) for of_seed in zip(*(_times(ours, theirs) for theirs in baselines.values()), strict=True)]
    behind = [text for label, theirs in baselines.items() for text in _behind(ours, label, theirs)]
    value = (
        f"utilisation ≥ {utilisation:.2f}; {_spread(best)} × the best baseline of each seed, {_spread(plain)} × plain"
    )
    waits = ", ".join(f"{one.throughput:,.0f}/s with p99 {one.p99_s:.1f} s" for one in ours)
    holds = utilisation >= UTILISATION and not behind and min(plain) >= TIMES_PLAIN
    return Figure(value, holds, "; ".join([f"by seed {waits}", *behind]))


def _times(ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[float]:
    return [one.throughput / other.throughput for one, other in zip(ours, theirs, strict=True)]


def _behind(ours: Sequence[Figures], label: str, theirs: Sequence[Figures]) -> list[str]:
    return [
        f"seed {seed} behind {label}: {other.throughput:,.0f}/s, p99 {other.p99_s:.1f} s"
        for seed, one, other in zip(SEEDS, ours, theirs, strict=True)
        if other.throughput > one.throughput or other.p99_s < one.p99_s
    ]


def _spread(times: Sequence[float]) -> str:
    return f"{median(times):.3g} (worst {min(times):.3g})"
