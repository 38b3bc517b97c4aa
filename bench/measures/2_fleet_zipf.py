"""Twenty models, room for eight, a few of them asked for most."""

from bench import crowd
from bench.figure import Figure
from bench.system import System

NAME = "20 fake models, room for 8, the rest in the host, load 2 s, wake 50 ms, 64 clients, Zipf: throughput"
BAR = "≥ 0.8 of all-resident, none failed"

SHARE = 0.8


def run(system: System) -> Figure:
    return crowd.compare(system, crowd.Traffic.zipf(), crowd.ZIPF, SHARE)
