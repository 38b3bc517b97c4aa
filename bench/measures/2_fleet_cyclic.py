"""Twenty models, room for eight, asked for in turn: the worst order there is."""

from bench import crowd
from bench.figure import Figure
from bench.system import System

NAME = "20 fake models, room for 8, the rest in the host, load 2 s, wake 50 ms, 64 clients in turn: throughput"
BAR = "≥ 0.5 of all-resident, none failed"

SHARE = 0.5


def run(system: System) -> Figure:
    return crowd.compare(system, crowd.Traffic.cyclic(), crowd.EVEN, SHARE)
