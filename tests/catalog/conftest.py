"""Entry files as tests write them, and the two that ship with the tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ENTRIES = Path(__file__).parent / "entries"

Write = Callable[..., Path]


def document(model_id: str = "org/model", **fields: Any) -> dict[str, Any]:
    """The shortest entry that is valid, with `fields` on top."""
    return {"id": model_id, "family": "fake", "primitives": ["encode"], "outputs": ["dense"], **fields}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "entries"
    path.mkdir()
    return path


@pytest.fixture
def write(folder: Path) -> Write:
    """Write one entry file; keys given as None are left out."""

    def write(file: str = "entry.yaml", model_id: str = "org/model", **fields: Any) -> Path:
        content = {key: value for key, value in document(model_id, **fields).items() if value is not None}
        path = folder / file
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write
