"""What the longer examples say around their steps."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def begin(title: str, models: Iterable[str]) -> None:
    """`python -m bench.stand_ins` lists beside its checkpoints which models they stand in for."""
    folder = os.environ.get("SHOAL_MODELS")
    listed = Path(folder, "stand-ins.txt") if folder else None
    standing = set(listed.read_text().split()) if listed is not None and listed.is_file() else set()
    print(title)
    for model in models:
        print(f"  {model}{'  (a stand-in: what it answers means nothing)' if model in standing else ''}")


def step(number: int, what: str, model: str) -> None:
    print(f"\n{number}. {what}  [{model}]")


def missing_generate(what: str, prompt: str, **asked: Any) -> None:
    """In place of the last step, and the call that it would be."""
    print(f"\n{what}: `generate` comes with text generation, which this server does not have yet.")
    print("It would be handed:")
    print("\n".join(f"    {line}" for line in prompt.splitlines()))
    print(f"    {json.dumps(asked)}")


def checked(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item fails alone, and says so in its result."""
    if "error" in result:
        raise SystemExit(f"{result['id']}: {result['error']['code']}: {result['error']['message']}")
    return result
