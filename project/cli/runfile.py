"""What runs with a data folder: a lock that the launcher holds while it lives, and a record others may read."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from project.cli.failure import CannotStart


@dataclass(frozen=True, slots=True)
class Process:
    """`created` (of psutil) tells a process from a later one with the same number."""

    name: str
    pid: int
    created: float
    ready: bool = False
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """The record. `environment` are the settings that reach this installation: URLs with their passwords."""

    launcher: Process
    url: str
    flower_url: str
    environment: dict[str, str]
    processes: tuple[Process, ...] = ()


def _folder(data: Path) -> Path:
    return data / "run"


@contextlib.contextmanager
def hold(data: Path) -> Iterator[None]:
    """Own this data folder. Raises CannotStart when another launcher does."""
    folder = _folder(data)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        running = read(data)
        where = f" at {running.url} (pid {running.launcher.pid})" if running else ""
        raise CannotStart(
            f"It runs already with its data in {data}{where}: end it with ./shoal stop, or pass another --data DIR."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def is_held(data: Path) -> bool:
    try:
        descriptor = os.open(_folder(data) / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write(data: Path, running: Running) -> None:
    draft = _folder(data) / "serve.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(running), file)
    draft.replace(_folder(data) / "serve.json")


def read(data: Path) -> Running | None:
    """The last record, whether or not what it tells of still runs."""
    try:
        fields = json.loads((_folder(data) / "serve.json").read_text())
    except (OSError, ValueError):
        return None
    fields["launcher"] = Process(**fields["launcher"])
    fields["processes"] = tuple(Process(**process) for process in fields["processes"])
    return Running(**fields)


def remove(data: Path) -> None:
    (_folder(data) / "serve.json").unlink(missing_ok=True)
