"""Simulated: evictions are nearly as good as if the future were known."""

from bench.figure import Figure
from bench.sim.study import seeds
from bench.system import System

NAME = "simulator, saturated: reloads against size-aware Belady in the order in which each device ran its batches"
BAR = "≤ 1.5 × with each of three seeds"

RATIO = 1.5


def run(system: System) -> Figure:
    found = seeds()
    value = ", ".join(f"{one.reload_ratio:.2f} × ({one.reloads} to {one.fewest_reloads})" for one in found)
    loads = ", ".join(f"{one.loads} to {one.fewest_loads}" for one in found)
    fifo = ", ".join(str(one.fifo_loads) for one in found)
    note = f"first loads included: {loads}; one device of all memory, in order of arrival: {fifo} loads"
    return Figure(value, all(one.reload_ratio <= RATIO for one in found), note)
