"""Runs measures, shows a table, and keeps it in docs/measurements.md.

    ./shoal measure [N] [--list] [--only NAME]

Exits with 1 when a figure falls short of its bar or a measure fails. What this machine could not run says so, and
counts neither way.
"""

import argparse
import importlib.util
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import machine
from bench.figure import Figure
from bench.system import System

FOLDER = Path(__file__).parent / "measures"
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "measurements.md"

HEAD = """\
# Measurements

Written by `./shoal measure`; edits are lost, but for those of sections whose title says more than an issue's number.
Each row is something that must hold, measured from outside on the running product.
`not run` says that the machine lacked something, and never counts as holding.
"""


@dataclass(frozen=True, slots=True)
class Measure:
    """One file of bench/measures, `N_name.py`."""

    issue: int
    file: Path
    name: str
    bar: str
    run: Callable[[System], Figure]


@dataclass(frozen=True, slots=True)
class Result:
    measure: Measure
    figure: Figure
    seconds: float

    @property
    def verdict(self) -> str:
        return {True: "yes", False: "NO", None: "not run"}[self.figure.holds]

    @property
    def shown(self) -> str:
        """The figure with its note; of a measure that was not run, why."""
        if self.figure.holds is None:
            return f"not run: {self.figure.note or self.figure.value}"
        return f"{self.figure.value} ({self.figure.note})" if self.figure.note else self.figure.value


def discover(folder: Path, issue: int | None = None, only: str | None = None) -> list[Measure]:
    files = sorted(folder.glob("[0-9]*_*.py"), key=lambda file: (int(file.stem.partition("_")[0]), file.stem))
    wanted = [
        file
        for file in files
        if issue in (None, int(file.stem.partition("_")[0])) and only in (None, file.stem.partition("_")[2], file.stem)
    ]
    return [_load(file) for file in wanted]


def _load(file: Path) -> Measure:
    """By path: a module's name cannot begin with a digit."""
    spec = importlib.util.spec_from_file_location(f"bench.measures.issue_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # children of a measure find it by name when they unpickle
    spec.loader.exec_module(module)
    return Measure(int(file.stem.partition("_")[0]), file, module.NAME, module.BAR, module.run)


def run_all(measures: Sequence[Measure], say: Callable[[str], None]) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory(prefix="shoal-measure-") as scratch:
        system = System(Path(scratch))
        try:
            for number, measure in enumerate(measures, 1):
                say(f"[{number}/{len(measures)}] {measure.name} …")
                result = _run(measure, system)
                say(f"    {result.shown}: {result.verdict}, {result.seconds:.0f} s")
                results.append(result)
        finally:
            system.close()
    return results


def _run(measure: Measure, system: System) -> Result:
    """A measure that breaks falls short; the others still run."""
    started = time.monotonic()
    try:
        figure = measure.run(system)
    except Exception as error:  # the edge of the loop over measures
        traceback.print_exc()
        figure = Figure("failed", False, f"{type(error).__name__}: {error}".splitlines()[0][:200])
    return Result(measure, figure, time.monotonic() - started)


def table(results: Sequence[Result]) -> str:
    """As Markdown, which reads well enough in a terminal."""
    rows = [("what must hold", "figure", "bar", "holds")]
    rows += [(result.measure.name, result.shown, result.measure.bar, result.verdict) for result in results]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    cells.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def document(old: str, results: Sequence[Result], when: datetime, where: str) -> str:
    """`old` with the sections of the issues measured now replaced; others stay as they were measured or written."""
    sections = {int(issue): text for issue, text in re.findall(r"^## Issue (\d+)\n(.*?)(?=^## |\Z)", old, re.M | re.S)}
    for issue in {result.measure.issue for result in results}:
        ours = [result for result in results if result.measure.issue == issue]
        stamp = f"Measured on {when:%Y-%m-%d %H:%M} UTC with `./shoal measure {issue}`, on {where}."
        sections[issue] = f"\n{stamp}\n\n{table(ours)}\n\n"
    written = re.findall(r"^## (?!Issue \d+\n)(.*?)(?=^## |\Z)", old, re.M | re.S)
    parts = [f"Issue {issue}\n{text.rstrip()}" for issue, text in sorted(sections.items())]
    return HEAD + "".join(f"\n## {part.rstrip()}\n" for part in [*parts, *written])


def main(options: argparse.Namespace) -> int:
    measures = discover(FOLDER, options.issue, options.only)
    if not measures:
        print("there is no such measure; ./shoal measure --list names all", file=sys.stderr)
        return 2
    if options.list:
        for measure in measures:
            print(f"{measure.issue}  {measure.file.stem.partition('_')[2]}: {measure.name}\n     bar: {measure.bar}")
        return 0
    results = run_all(measures, lambda text: print(text, file=sys.stderr, flush=True))
    print(table(results))
    if options.only is None:
        old = DOCUMENT.read_text() if DOCUMENT.exists() else ""
        DOCUMENT.write_text(document(old, results, datetime.now(UTC), machine.describe()))
        print(f"\nwritten to {DOCUMENT.relative_to(Path.cwd()) if DOCUMENT.is_relative_to(Path.cwd()) else DOCUMENT}")
    return 1 if any(result.figure.holds is False for result in results) else 0
