"""Simulated: nothing waits past its deadline."""

from statistics import median

from bench.figure import Figure
from bench.sim.study import SATURATED, seeds
from bench.system import System
from workers.dispatcher import TICK_S

NAME = "simulator, saturated: no entry waits past its bound, the deadline"
BAR = "none refused, none answered later than its deadline, with each of five seeds"


def run(system: System) -> Figure:
    found = seeds()
    longest, refused = [one.longest_s for one in found], sum(one.refused for one in found)
    value = f"longest wait: median {median(longest):.1f} s, worst {max(longest):.1f} s of {SATURATED.timeout_s:.0f} s"
    held = max(one.longest_held_s for one in found)
    note = f"{refused} refused; from a worker's taking to the start of the forward at most {held:.1f} s"
    return Figure(value, refused == 0 and max(one.late_s for one in found) <= TICK_S, note)
