"""One model in this process, without broker or server: `python -m workers.families MODEL TEXT [TEXT …]`.

Prints what is known of the loaded model and each text's tokens and vector; for two texts or more also their cosines.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from catalog import loader
from catalog.snapshot import Snapshot
from protocol.errors import ShoalError
from protocol.messages import Payload
from workers.families.alone import Alone
from workers.weights.resolve import resolve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.families", description=__doc__.splitlines()[0])
    parser.add_argument("model", help="as a caller would name it, profile included")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, default=loader.ENTRIES.parents[1] / ".shoal")
    given = parser.parse_args()
    try:
        _show(given.texts, *_encode(given))
    except ShoalError as error:
        parser.exit(1, f"{error.code}: {error.message}\n")


def _encode(given: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is known of the model, and one result map per text."""
    found = Snapshot(0, tuple(entry.model for entry in loader.load([loader.ENTRIES]))).resolve(given.model)
    spec, options = found.model.spec, dict(found.options)
    folder = resolve(spec, SimpleNamespace(models_folder=None, offline=False, data=given.data))
    loaded = Alone(spec, folder, given.device)
    results = loaded.run(Payload([{"text": text} for text in given.texts], options))
    return dict(loaded.model.facts()), results


def _show(texts: list[str], facts: dict[str, Any], results: list[dict[str, Any]]) -> None:
    print(json.dumps(facts))
    rows = np.stack([result["dense"]["values"] for result in results])
    for text, result, row in zip(texts, results, rows, strict=True):
        print(f"{result['tokens']:5} tokens  [{row[0]:.4f}, {row[1]:.4f}, {row[2]:.4f}, …]  {text[:60]!r}")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    if len(rows) > 1:
        print(np.round(unit @ unit.T, 4))


if __name__ == "__main__":
    main()
