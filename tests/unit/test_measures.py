"""The runner of measures, on measures that need nothing."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench import run
from bench.figure import Figure, not_run

MEASURE = """
from bench.figure import Figure, not_run
NAME, BAR = "{name} holds", "at least 1"
def run(system):
    {body}
"""
WHEN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bodies = {
        "1_good": "return Figure('2 units', True, 'of 3')",
        "1_poor": "return Figure('0 units', False)",
        "2_absent": "return not_run('no CUDA device')",
        "10_broken": "raise ValueError('no luck')",
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(MEASURE.format(name=name, body=body))
    return tmp_path


def results(folder: Path, issue: int | None = None) -> list[run.Result]:
    return run.run_all(run.discover(folder, issue), lambda text: None)


def test_measures_are_found_in_order_of_issue(folder: Path) -> None:
    assert [measure.name for measure in run.discover(folder)] == [
        "1_good holds",
        "1_poor holds",
        "2_absent holds",
        "10_broken holds",
    ]


def test_one_issues_measures(folder: Path) -> None:
    assert [measure.issue for measure in run.discover(folder, 1)] == [1, 1]


def test_one_measure_by_name(folder: Path) -> None:
    assert [measure.file.stem for measure in run.discover(folder, only="absent")] == ["2_absent"]


def test_a_measure_that_breaks_falls_short_and_the_others_run(folder: Path) -> None:
    assert [result.verdict for result in results(folder)] == ["yes", "NO", "not run", "NO"]


def test_what_was_not_run_says_why_and_does_not_hold() -> None:
    measure = run.Measure(1, Path("1_x.py"), "x", "1", lambda system: Figure("", None))
    result = run.Result(measure, not_run("no CUDA device"), 0)
    assert (result.shown, result.verdict) == ("not run: no CUDA device", "not run")


def test_the_table_has_name_figure_bar_and_verdict(folder: Path) -> None:
    assert "| 1_good holds | 2 units (of 3) | at least 1 | yes |" in run.table(results(folder))


def test_the_document_keeps_other_issues_sections(folder: Path) -> None:
    first = run.document("", results(folder, 1), WHEN, "two cores")
    both = run.document(first, results(folder, 2), WHEN, "a later machine")
    assert both.index("two cores") < both.index("## Issue 2") < both.index("a later machine")


def test_the_document_keeps_what_was_written_by_hand(folder: Path) -> None:
    by_hand = "\n## Issue 1: faults\n\nA table.\n"
    first = run.document("", results(folder, 1), WHEN, "two cores") + by_hand
    again = run.document(first, results(folder, 1), WHEN, "two cores")
    assert again == first


def test_the_document_replaces_an_issues_own_section(folder: Path) -> None:
    first = run.document("", results(folder, 1), WHEN, "two cores")
    assert run.document(first, results(folder, 1), WHEN, "two cores") == first
