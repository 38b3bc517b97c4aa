"""A start with everything installed and migrated reaches READY soon."""

import os

from bench.figure import Figure
from bench.system import Serving, System

NAME = "second start reaches READY"
BAR = "< 15 s"

LIMIT_S = 15.0


def run(system: System) -> Figure:
    system.close()
    data = system.folder()
    settings = {"SHOAL_OFFLINE": "1"}
    first = Serving(data, settings, flower=True)
    first.stop()
    second = Serving(data, settings, flower=True)
    second.stop()
    note = f"with Flower, {os.cpu_count()} cores; the first start, which makes the database, took {first.ready_s:.1f} s"
    return Figure(f"{second.ready_s:.1f} s", second.ready_s < LIMIT_S, note)
