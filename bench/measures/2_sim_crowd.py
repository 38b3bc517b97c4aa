"""Simulated: the crowd of the 2_fleet measures, where nothing but the schedule counts."""

from pathlib import Path

from bench import crowd
from bench.figure import Figure
from bench.sim.closed import Compared, compare
from bench.system import System
from workers.config import WorkerConfig

NAME = "simulator, 20 models, room for 8, the rest in the host, load 2 s, wake 50 ms, 64 clients: of all-resident"
BAR = "asked for in turn ≥ 0.5, Zipf ≥ 0.8"

CYCLIC, ZIPF = 0.5, 0.8


def run(system: System) -> Figure:
    cyclic, zipf = compare(crowd.Traffic.cyclic()), compare(crowd.Traffic.zipf())
    value = f"in turn {cyclic.share:.2f}, Zipf {zipf.share:.2f}"
    note = f"in turn {_said(cyclic, crowd.EVEN)}; Zipf {_said(zipf, crowd.ZIPF)}"
    return Figure(value, cyclic.share >= CYCLIC and zipf.share >= ZIPF, note)


def _said(found: Compared, weights: list[float]) -> str:
    possible = crowd.most_possible(weights, WorkerConfig("", Path()).loads_at_once)
    rates = f"{found.part:.1f} of {found.whole:.1f} requests/s"
    loaded = f"without the host's memory {found.loaded:.1f} of {possible:.1f} that any policy could reach"
    return f"{rates}, {loaded}, longest wait {found.longest_s:.1f} s"
