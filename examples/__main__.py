"""One command for an example: makes its client and stand-ins for weights that are not here, serves, runs it, ends all.

.venv/bin/python -m examples claim
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench import clients, stand_ins
from bench.system import ROOT, Serving
from examples.needs import NEEDS


def run(
    name: str, python: Path, serving: Serving, models: Path, capture: bool = False
) -> "subprocess.CompletedProcess[str]":
    """`capture` keeps what it prints."""
    command: list[str | Path] = [python, ROOT / "examples" / f"{name}.py", serving.url]
    settings = {**os.environ, "SHOAL_MODELS": str(models)}
    return subprocess.run(command, env=settings, capture_output=capture, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("example", choices=sorted(NEEDS))
    parser.add_argument("--data", type=Path, default=ROOT / ".shoal" / "examples")
    given = parser.parse_args()
    client = NEEDS[given.example]
    try:
        python = clients.environment(given.data / "clients", client.packages, client.oldest)
    except clients.NoEnvironment as reason:
        print(f"examples: {reason}", file=sys.stderr)
        return 1
    models = given.data / "models"
    stand_ins.write_published(models, given.data)
    serving = Serving(given.data / "serve", {"SHOAL_MODELS": str(models), "SHOAL_OFFLINE": "1"})
    try:
        return run(given.example, python, serving, models).returncode
    finally:
        serving.stop()


if __name__ == "__main__":
    sys.exit(main())
