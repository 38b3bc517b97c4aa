"""Which bundles there are: `base`, the worker's own environment, and one for each file in requirements/bundles."""

from pathlib import Path

BASE = "base"
REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements" / "bundles"


def known(files: Path = REQUIREMENTS) -> tuple[str, ...]:
    """Their names, the base first."""
    return (BASE, *sorted(file.stem for file in files.glob("*.txt")))
