"""Making a folder once: concurrent makers wait for the first, readers never see half of it."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, filled by `make` unless it is there already. Raises OSError, or what `make` raises."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target):
        if not target.is_dir():
            draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                make(draft)
                draft.chmod(0o755)  # mkdtemp's folder is for its maker alone
                draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return target


def alone(target: Path) -> FileLock:
    """Held by one process (and thread) at a time for this target; freed by the system if its holder dies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(target.parent / f".{target.name}.lock")
