"""Simulated: nothing waits past its deadline."""

from bench.figure import Figure
from bench.sim.study import SATURATED, saturated
from bench.system import System
from workers.dispatcher import TICK_S

NAME = "simulator, saturated: no entry waits past its bound, the deadline"
BAR = "none refused, none answered later than its deadline"


def run(system: System) -> Figure:
    shoal, _ = saturated()
    value = f"longest wait {shoal.longest_s:.1f} s of {SATURATED.timeout_s:.0f} s, {shoal.refused} refused"
    note = f"from a worker's taking to the start of the forward at most {shoal.longest_held_s:.1f} s"
    return Figure(value, shoal.refused == 0 and shoal.late_s <= TICK_S, note)
