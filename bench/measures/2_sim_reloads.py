"""Simulated: evictions are nearly as good as if the future were known."""

from statistics import median

from bench.figure import Figure
from bench.sim.study import seeds
from bench.system import System

NAME = "simulator, saturated: reloads against size-aware Belady's in the order in which each device ran its batches"
BAR = "≤ 1.5 × with each of five seeds"

RATIO = 1.5


def run(system: System) -> Figure:
    found = seeds()
    ratios = [one.reload_ratio for one in found]
    value = f"median {median(ratios):.2f} ×, worst {max(ratios):.2f} ×"
    each = ", ".join(f"{one.reloads} to {one.fewest_reloads}" for one in found)
    loads = ", ".join(f"{one.loads} to {one.fewest_loads}" for one in found)
    fifo = ", ".join(str(one.fifo_loads) for one in found)
    note = f"{each}; first loads included: {loads}; one device of all memory, in order of arrival: {fifo} loads"
    return Figure(value, max(ratios) <= RATIO, note)
