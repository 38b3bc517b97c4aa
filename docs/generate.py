"""Writes the tables in these pages from the code they describe: `python -m docs.generate`, or `--check` in CI.

A page asks for a table with a pair of comments; what stands between them is replaced:

    <!-- generated: errors -->
    <!-- end generated -->
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from docs.tables import TABLES

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


def rewritten(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """`text` with every generated block made anew. Raises KeyError for a table nobody defines."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{tables[match['name']]()}\n\n{match[3]}", text)


def stale_pages(paths: Iterable[Path]) -> dict[Path, str]:
    """Pages whose tables differ from the code, with the text they should have."""
    found = {}
    for path in paths:
        text = path.read_text()
        fresh = rewritten(text, TABLES)
        if fresh != text:
            found[path] = fresh
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a table is stale")
    check = parser.parse_args(arguments).check
    stale = stale_pages(pages())
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)}: tables are stale; run python -m docs.generate")
        else:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
