"""The saturated scenario's figures over how stale the snapshots are. Needs matplotlib."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from bench.sim.report import ROOT, Found
from bench.sim.study import SATURATED

IMAGES = ROOT / "docs" / "img"
PLOTS = {
    "throughput": ("answered cost a second", lambda f: f.throughput),
    "p50": ("median wait, s", lambda f: f.p50_s),
    "p99": ("99th percentile of waits, s", lambda f: f.p99_s),
    "utilisation": ("share of time in forwards", lambda f: f.utilisation),
    "reloads": ("reloads", lambda f: f.reloads),
    "oldest": ("oldest wait, s", lambda f: f.oldest_wait_s),
}


def draw(found: Found) -> Path:
    """One picture of all figures of the saturated scenario over how stale the snapshots are."""
    saturated = [pair for pair in found if pair[0].scenario == SATURATED]
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for axis, (title, value) in zip(axes.flat, PLOTS.values(), strict=True):
        _draw(axis, saturated, value)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("age of snapshots, ms")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / "simulator.png"
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)
    return path


def _draw(axis, saturated, value) -> None:  # type: ignore[no-untyped-def]  # matplotlib's own types are in part
    names = dict.fromkeys(run.policy.name for run, _ in saturated)
    for name in names:
        points = [(run.policy.stale_s * 1e3, value(f)) for run, f in saturated if run.policy.name == name]
        if name == "shoal":
            axis.axhline(points[0][1], label=name, color="black")
        else:
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
    axis.set_ylim(bottom=0)
