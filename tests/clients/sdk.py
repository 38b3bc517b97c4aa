"""Where the published SDK runs: an environment of Python 3.12 or later with nothing but `sie-sdk` in it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from bench import clients
from examples.needs import SDK

SCRIPT = Path(__file__).with_name("sdk_calls.py")
RECORDED = Path(__file__).with_name("recorded")


def environment(cache: Path) -> Path:
    """A Python that can import `sie_sdk`, made under `cache` on first use. Raises NoEnvironment."""
    return clients.environment(cache, SDK.packages, SDK.oldest)


def call(python: Path, url: str, *names: str) -> list[dict[str, Any]]:
    """Run these calls of `sdk_calls.py` (all when none is named) against `url`; one outcome each."""
    return [json.loads(line) for line in _script(python, url, *names).splitlines()]


def calls(python: Path) -> list[str]:
    """The names of all calls."""
    names: list[str] = json.loads(_script(python))
    return names


def _script(python: Path, *arguments: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SIE_", "PYTHON"))}
    command = [str(python), str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=clean)
    if done.returncode:
        raise RuntimeError(f"the SDK's script ended with status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
