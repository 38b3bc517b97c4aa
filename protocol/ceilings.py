"""What running out of memory taught: the largest batch cost of a model on a device, kept in the worker's data folder.

One small file per device. Workers that share a folder and a device write it under a lock, each its own model's line;
readers see the old file or the new one, never half of it.
"""

import contextlib
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("shoal.ceilings")

MOST = 500  # of one device; the oldest leave first
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`memory` is what models might take on the device then: with more of it, it holds no longer."""

    model: str
    cost: int
    memory: int
    at: float


Ceilings = dict[str, Ceiling]  # by model digest


def folder(data: Path) -> Path:
    return data / "ceilings"


def file(data: Path, device: str) -> Path:
    return folder(data) / f"{device.replace(':', '-')}.json"


def files(data: Path) -> list[Path]:
    """Of every device that has any."""
    return sorted(folder(data).glob("*.json"))


def read(path: Path) -> Ceilings:
    """What is kept there; nothing, and a line in the log, where it cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return {digest: _ceiling(fields) for digest, fields in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        log.warning("remembered ceilings not readable, starting anew: %s", reason, extra={"file": path.name})
        return {}


def change(path: Path, how: Callable[[Ceilings], Mapping[str, Ceiling]]) -> None:
    """Put in place of what is kept what `how` makes of it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        kept = sorted(how(read(path)).items(), key=lambda item: item[1].at)[-MOST:]
        _write(path, {digest: asdict(ceiling) for digest, ceiling in kept})


def _ceiling(fields: dict[str, Any]) -> Ceiling:
    ceiling = Ceiling(**fields)
    for value, kind in ((ceiling.model, str), (ceiling.cost, int), (ceiling.memory, int), (ceiling.at, int | float)):
        if not isinstance(value, kind):
            raise ValueError(f"{value!r} is not what belongs there")
    if ceiling.cost < 1:
        raise ValueError(f"a batch of cost {ceiling.cost} is none")
    return ceiling


def _write(path: Path, content: Mapping[str, Any]) -> None:
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(content, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed with the file, however its holder ends
        yield
