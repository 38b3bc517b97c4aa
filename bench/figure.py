"""What a measure answers.

A measure is a module `bench/measures/N_name.py`, N the issue whose promise it checks, with `NAME` (what must hold, in
a few words), `BAR` (how much of it) and `def run(system: System) -> Figure`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` is the figure with its unit; `holds` is None when this machine could not run it, and `note` says why."""

    value: str
    holds: bool | None
    note: str = ""


def not_run(why: str) -> Figure:
    return Figure("not run", None, why)
