"""Bundles: sets of Python dependencies that can live together, and the interpreter that the engines of each run in.

`requirements/bundles/NAME.txt` says what a bundle pins. One that pins nothing runs in the worker's own environment, the
base, in a process of its own. For the others `./shoal bundle install` (`project/cli/bundling.py`) makes an environment:

    NAME/current → build-…          swapped whole: an engine starts in what it names then, and stays there
    NAME/build-…/env                a virtual environment with what the bundle pins, which is found first
    NAME/build-…/shared             links to packages of the base, found after that
    NAME/build-…/bundle.json        the marker, written last: a build without it is half made
"""

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from catalog.bundles import BASE, REQUIREMENTS, known
from workers.config import WorkerConfig

log = logging.getLogger("shoal.bundles")

CURRENT = "current"
ENVIRONMENT = "env"
SHARED = "shared"
MARKER = "bundle.json"

_NAMED_FILE = re.compile(r"^-r\s+(\S+)", re.MULTILINE)
_IMPORTS = re.compile(r"^# imports: (.+)$", re.MULTILINE)


class Unusable(Exception):
    """No engine of this bundle can start: a sentence for callers and operators, without paths."""


class Condition(StrEnum):
    BASE = "in the base"  # it needs no environment
    READY = "ready"
    STALE = "stale"  # whole, but its file says something else by now
    MISSING = "not installed"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Marker:
    """What a build was made from, and what it holds: package → version."""

    requirements: str  # the digest of its file
    python: str
    own: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, file: Path) -> "Marker | None":
        """None where there is none that can be read."""
        try:
            return cls(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle as it is on this machine; `why` is a part of a sentence where it is stale or broken."""

    condition: Condition
    python: Path | None = None
    marker: Marker | None = None
    why: str = ""


def interpreter(name: str, config: WorkerConfig) -> Path:
    """Of the engines of this bundle. Raises Unusable, saying what to do."""
    if name not in known():
        raise Unusable(f"this worker has no bundle {name!r}; it has: {', '.join(known())}")
    found = look(name, config.bundles_folder or config.data / "bundles")
    if found.python is None:
        reason = f"{found.condition}: {found.why}" if found.why else str(found.condition)
        raise Unusable(f"its bundle {name!r} is {reason}; run `./shoal bundle install {name}` where this worker runs")
    if found.condition is Condition.STALE:
        log.warning("bundle is stale: %s", found.why, extra={"bundle": name})
    return found.python


def look(name: str, folder: Path, files: Path = REQUIREMENTS) -> Found:
    """`folder` holds the environments of all bundles. Reads a few small files and runs nothing."""
    if name == BASE or not pins(files / f"{name}.txt"):
        return Found(Condition.BASE, Path(sys.executable))
    current = folder / name / CURRENT
    if not current.is_symlink():
        return Found(Condition.MISSING)
    build = current.resolve()  # an engine stays in the build it was started in
    marker, python = Marker.read(build / MARKER), build / ENVIRONMENT / "bin" / "python"
    if marker is None or not os.access(python, os.X_OK):
        return Found(Condition.BROKEN, why="it is half made, or lost files")
    if changed := _base_changed(marker, build / SHARED):
        return Found(Condition.BROKEN, marker=marker, why=changed)
    if marker.requirements != digest(files / f"{name}.txt"):
        return Found(Condition.STALE, python, marker, "its requirements file has changed since it was installed")
    return Found(Condition.READY, python, marker)


def pins(file: Path) -> list[str]:
    """The lines of a requirements file that name a package or another file."""
    lines = (line.split(" #")[0].strip() for line in file.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def imports(file: Path) -> list[str]:
    """The modules that a bundle promises: those its file lists after `# imports:`."""
    return [name for line in _IMPORTS.findall(file.read_text()) for name in line.split()]


def digest(file: Path) -> str:
    """Of a requirements file and all that it names."""
    return hashlib.sha256("".join(_texts(file)).encode()).hexdigest()


def python_version() -> str:
    """What the packages of an environment were made for."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _texts(file: Path) -> Iterator[str]:
    text = file.read_text()
    yield text
    for named in _NAMED_FILE.findall(text):
        yield from _texts(file.parent / named)


def _base_changed(marker: Marker, shared: Path) -> str:
    """Why what this build shares with the base is not what it was made with; empty if it is.

    A package's metadata has its version in its name, so a link to it leads nowhere once the base has another.
    """
    if marker.python != python_version():
        return f"it was made for Python {marker.python} and this is {python_version()}"
    lost = sorted(link.name for link in shared.glob("*") if not link.exists())
    return f"{lost[0]} of the worker's own environment, which it shares, is gone" if lost else ""
