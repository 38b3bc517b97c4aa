"""Which scenarios and policies are compared, and running many of them."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

from bench.sim.figures import Figures, figures
from bench.sim.world import SHOAL, Policy, Scenario, router, simulate

STALE_S = (0.01, 0.05, 0.2)
PLAIN = router("plain", 0.05)
STRONG = tuple(router(name, stale_s) for name in ("two choices", "shortest") for stale_s in STALE_S)
BASELINES = (*STRONG, router("single choice", 0.05), PLAIN)

# The one that what must hold is measured on.
SATURATED = Scenario()

# Each trace at a level that loads the fleet without drowning it; a thousand models mean a load for every few requests.
SCENARIOS = {
    "20 models": Scenario(models=20),
    "100 models": SATURATED,
    "1,000 models": Scenario(models=1000, level=0.1, exponent=1.3),
    "mixed lengths": Scenario(trace="mixed"),
    "diurnal": Scenario(trace="diurnal"),
    "bursts": Scenario(trace="bursts", level=0.7),
    "overload": Scenario(level=1.25),
    "bulk job": Scenario(trace="bulk"),
}
OTHERS = (SHOAL, router("two choices", 0.05), router("shortest", 0.05))


@dataclass(frozen=True, slots=True)
class Run:
    title: str
    scenario: Scenario
    policy: Policy


def everything() -> list[Run]:
    """All staleness on the saturated scenario, one of it on the others."""
    runs = [Run("100 models", SATURATED, policy) for policy in (SHOAL, *BASELINES)]
    others = {title: scenario for title, scenario in SCENARIOS.items() if scenario is not SATURATED}
    return runs + [Run(title, scenario, policy) for title, scenario in others.items() for policy in OTHERS]


def run_all(runs: Sequence[Run], say: Callable[[str], None], processes: int = 1) -> list[tuple[Run, Figures]]:
    """Each in a process of its own, which takes its dispatchers' pipes with it when it ends."""
    context = multiprocessing.get_context("spawn")
    found = []
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
        for run, result in zip(runs, pool.map(_figures, runs), strict=True):
            say(f"{run.title}, {run.policy.label}: {result.throughput:,.0f}/s, p99 {result.p99_s:.2f} s")
            found.append((run, result))
    return found


def _figures(run: Run) -> Figures:
    return figures(simulate(run.scenario, run.policy))


SEEDS = (1, 2, 3, 4, 5)
# the baselines that are measured with every seed: snapshots older than these serve both routers worse
MEASURED = (*(router(name, stale_s) for name in ("two choices", "shortest") for stale_s in STALE_S[:2]), PLAIN)


@cache
def seeds() -> tuple[Figures, ...]:
    """Shoal's figures on the saturated scenario, with each of five fleets and their traffic."""
    return tuple(result for _, result in _measured([SHOAL]))


@cache
def against() -> dict[str, tuple[Figures, ...]]:
    """The baselines' figures in the order of `seeds`, by label."""
    found = _measured(MEASURED)
    return {policy.label: tuple(f for run, f in found if run.policy == policy) for policy in MEASURED}


def _measured(policies: Sequence[Policy]) -> list[tuple[Run, Figures]]:
    runs = [Run("100 models", replace(SATURATED, seed=seed), policy) for policy in policies for seed in SEEDS]
    return run_all(runs, say=lambda text: None, processes=os.cpu_count() or 1)
