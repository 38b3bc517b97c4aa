"""Where published clients run: a virtual environment for each, with its pinned packages and nothing of ours."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock

_NAMES = ("python3.11", "python3.12", "python3.13", "python3.14")
_MINUTES = 10


class NoEnvironment(Exception):
    """Why a client cannot run here; `has_python` says whether only the installation failed."""

    def __init__(self, reason: str, has_python: bool) -> None:
        super().__init__(reason)
        self.has_python = has_python


def environment(cache: Path, packages: Sequence[str], oldest: tuple[int, int] = (3, 11)) -> Path:
    """A Python with these packages (`name==version`), kept under `cache` by the first's name. Raises NoEnvironment."""
    folder = cache / packages[0].replace("==", "-")
    done = folder / "complete"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not done.exists() or done.read_text().split() != list(packages):
            _make(folder, packages, oldest)
            done.write_text("\n".join(packages))
    return folder / "bin" / "python"


def _make(folder: Path, packages: Sequence[str], oldest: tuple[int, int]) -> None:
    python = next(_pythons(oldest), None)
    if python is None:
        wanted = ".".join(map(str, oldest))
        reason = f"{packages[0]} wants Python {wanted} and there is none on the PATH or in pyenv"
        raise NoEnvironment(reason, has_python=False)
    _run(packages[0], str(python), "-m", "venv", "--clear", str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(packages[0], *pip, *packages)


def _pythons(oldest: tuple[int, int]) -> Iterator[Path]:
    """Interpreters that really start: a pyenv shim may be on the PATH without its version being chosen."""
    found = [Path(where) for name in _NAMES if (where := shutil.which(name))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += sorted(pyenv.glob("3.1[1-9].*/bin/python"))
    check = f"import sys, venv; sys.exit(sys.version_info < {oldest})"
    for path in [Path(sys.executable), *found]:
        if subprocess.run([path, "-c", check], capture_output=True, timeout=30, check=False).returncode == 0:
            yield path


def _run(what: str, *command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * _MINUTES, check=False)
    except subprocess.TimeoutExpired:
        raise NoEnvironment(f"{' '.join(command[1:4])} took more than {_MINUTES} minutes", has_python=True) from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NoEnvironment(f"{what} cannot be installed: {' '.join(last)}", has_python=True)
