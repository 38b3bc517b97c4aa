"""What tools can check of how the code reads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("admin", "bench", "catalog", "docs", "examples", "inference", "project", "protocol", "workers")
LONGEST_FUNCTION, LONGEST_FILE = 40, 300


def sources() -> list[Path]:
    """Our own code, without generated migrations."""
    return [
        ROOT / "shoal",
        *(
            file
            for folder in FOLDERS
            for file in sorted((ROOT / folder).rglob("*.py"))
            if "migrations" not in file.parts
        ),
    ]


def too_long_functions(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "format", "--check", "."),
        ("ruff", "check", "."),
        ("mypy", "--scripts-are-modules", "shoal", *FOLDERS, "tests"),
    ],
    ids=["format", "lint", "types"],
)
@pytest.mark.timeout(600)
def test_tools_find_nothing(command: tuple[str, ...]) -> None:
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_functions_are_short() -> None:
    assert [line for file in sources() for line in too_long_functions(file)] == []


def test_files_are_short() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in sources()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}
