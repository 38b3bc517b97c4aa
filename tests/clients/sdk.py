"""Where the published SDK runs: an environment of Python 3.12 or later with nothing but `sie-sdk` in it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PINNED = "sie-sdk==0.10.1"
SCRIPT = Path(__file__).with_name("sdk_calls.py")
RECORDED = Path(__file__).with_name("recorded")
_NAMES = ("python3.12", "python3.13", "python3.14")
_MINUTES = 10


class NoEnvironment(Exception):
    """Why the SDK cannot run here; `has_python` says whether only the installation failed."""

    def __init__(self, reason: str, has_python: bool) -> None:
        super().__init__(reason)
        self.has_python = has_python


def environment(cache: Path) -> Path:
    """A Python that can import `sie_sdk`, made under `cache` on first use. Raises NoEnvironment."""
    folder = cache / f"{PINNED.replace('==', '-')}"
    python = folder / "bin" / "python"
    done = folder / "complete"
    if done.exists():
        return python
    newer = next(_newer_pythons(), None)
    if newer is None:
        raise NoEnvironment("sie-sdk wants Python 3.12 and there is none on the PATH or in pyenv", has_python=False)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run(str(newer), "-m", "venv", "--clear", str(folder))
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PINNED)
    done.touch()
    return python


def _newer_pythons() -> Iterator[Path]:
    """Interpreters that really start: a pyenv shim may be on the PATH without its version being chosen."""
    found = [Path(where) for name in _NAMES if (where := shutil.which(name))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += sorted(pyenv.glob("3.1[2-9].*/bin/python"))
    for path in found:
        if subprocess.run([path, "-c", "import venv"], capture_output=True, timeout=30, check=False).returncode == 0:
            yield path


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * _MINUTES, check=False)
    except subprocess.TimeoutExpired:
        raise NoEnvironment(f"{' '.join(command[1:4])} took more than {_MINUTES} minutes", has_python=True) from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NoEnvironment(f"{PINNED} cannot be installed: {' '.join(last)}", has_python=True)


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
