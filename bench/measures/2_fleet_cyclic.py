"""Twenty models, room for eight, asked for in turn: the worst order there is."""

from dataclasses import replace
from pathlib import Path

from bench import crowd
from bench.figure import Figure
from bench.system import System
from workers.config import WorkerConfig

NAME = "20 fake models, room for 8, load 2 s, 64 clients, asked for in turn: throughput"
BAR = "≥ 0.5 of all-resident, none failed"

SHARE = 0.5


def run(system: System) -> Figure:
    figure = crowd.compare(system, crowd.Traffic.cyclic(), SHARE)
    possible = crowd.most_possible(WorkerConfig("", Path()).loads_at_once)
    note = f"{figure.note}; no policy without favourites exceeds {possible:.1f} requests/s (bench/crowd.py)"
    return replace(figure, note=note)
