"""The saturated scenario over how stale the snapshots are, and all scenarios side by side. Needs matplotlib."""

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from bench.sim.figures import Figures
from bench.sim.report import ROOT, Found
from bench.sim.study import OTHERS, SATURATED, SCENARIOS
from bench.sim.world import Policy

IMAGES = ROOT / "docs" / "img"
BAR_WIDTH = 0.28
PLOTS = {
    "throughput": ("answered cost a second", lambda f: f.throughput),
    "p50": ("median wait, s", lambda f: f.p50_s),
    "p99": ("99th percentile of waits, s", lambda f: f.p99_s),
    "utilisation": ("share of time in forwards", lambda f: f.utilisation),
    "reloads": ("reloads", lambda f: f.reloads),
    "oldest": ("oldest wait, s", lambda f: f.oldest_wait_s),
}


BARS: dict[str, Callable[[Figures], float]] = {
    "throughput, of the best": lambda f: f.throughput + f.bulk_throughput,
    "99th percentile of waits, s": lambda f: f.p99_s,
    "reloads": lambda f: f.reloads,
}


def draw(found: Found) -> tuple[Path, Path]:
    return _over_staleness(found), _over_scenarios(found)


def _over_scenarios(found: Found) -> Path:
    """One picture of all scenarios: what each of three policies did in it."""
    figure, axes = plt.subplots(len(BARS), 1, figsize=(9, 9), layout="constrained", sharex=True)
    for axis, (title, value) in zip(axes.flat, BARS.items(), strict=True):
        heights = [[_value(found, scenario, policy, value) for scenario in SCENARIOS] for policy in OTHERS]
        if "of the best" in title:
            best = [max(of_one) for of_one in zip(*heights, strict=True)]
            heights = [[height / top for height, top in zip(row, best, strict=True)] for row in heights]
        for number, (policy, row) in enumerate(zip(OTHERS, heights, strict=True)):
            places = [place + (number - 1) * BAR_WIDTH for place in range(len(SCENARIOS))]
            axis.bar(places, row, BAR_WIDTH, label=policy.label, color=f"C{number - 1}" if number else "black")
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(SCENARIOS)), SCENARIOS)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(OTHERS))
    return _save(figure, "scenarios.png")


def _value(found: Found, scenario: str, policy: Policy, value: Callable[[Figures], float]) -> float:
    wanted = SCENARIOS[scenario], policy
    return next(value(figures) for run, figures in found if (run.scenario, run.policy) == wanted)


def _save(figure: Figure, name: str) -> Path:
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / name
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)
    return path


def _over_staleness(found: Found) -> Path:
    """One picture of all figures of the saturated scenario over how stale the snapshots are."""
    saturated = [pair for pair in found if pair[0].scenario == SATURATED]
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for axis, (title, value) in zip(axes.flat, PLOTS.values(), strict=True):
        _draw(axis, saturated, value)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("age of snapshots, ms")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return _save(figure, "simulator.png")


def _draw(axis, saturated, value) -> None:  # type: ignore[no-untyped-def]  # matplotlib's own types are in part
    names = dict.fromkeys(run.policy.name for run, _ in saturated)
    for name in names:
        points = [(run.policy.stale_s * 1e3, value(f)) for run, f in saturated if run.policy.name == name]
        if name == "shoal":
            axis.axhline(points[0][1], label=name, color="black")
        else:
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
    axis.set_ylim(bottom=0)
