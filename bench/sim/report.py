"""What a study found, as tables, and the page that shows them."""

import re
from collections.abc import Sequence
from pathlib import Path

from bench.sim.figures import Figures
from bench.sim.study import Run

Found = Sequence[tuple[Run, Figures]]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "simulator.md"
BLOCK = re.compile(r"(<!-- simulated -->\n).*?(<!-- end simulated -->)", re.DOTALL)

HEAD = ("policy", "throughput", "p50", "p99", "longest", "utilisation", "refused", "reloads", "Belady's")


def table(found: Found) -> str:
    """Markdown, one table a scenario."""
    titles = dict.fromkeys(run.title for run, _ in found)
    return "\n\n".join(
        f"### {title}\n\n{_table([pair for pair in found if pair[0].title == title])}" for title in titles
    )


def _table(found: Found) -> str:
    rows = [HEAD, ("---",) * len(HEAD), *(_row(run.policy.label, figures) for run, figures in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(label: str, f: Figures) -> tuple[str, ...]:
    throughput = f"{f.throughput:,.0f}" + (f" + {f.bulk_throughput:,.0f} bulk" if f.bulk_throughput else "")
    waits = (f"{f.p50_s:.2f} s", f"{f.p99_s:.2f} s", f"{f.longest_s:.1f} s")
    reloads = (str(f.reloads), str(f.fewest_reloads))
    return (label, throughput, *waits, f"{f.utilisation:.2f}", str(f.refused), *reloads)


def write(found: Found) -> None:
    """Replace the page's figures."""
    PAGE.write_text(BLOCK.sub(lambda match: f"{match[1]}\n{table(found)}\n\n{match[2]}", PAGE.read_text()))
