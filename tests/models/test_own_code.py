"""S091: code of a checkpoint runs when its entry approves that commit, and no other code ever."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ModelLoadFailed
from protocol.messages import Payload
from protocol.spec import ModelSpec, Source
from tests.models import own_code
from workers.families.alone import Alone

dynamic: Any = pytest.importorskip("transformers.dynamic_module_utils")


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers keeps a copy of such code, and imports that."""
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


def spec(*, approved: bool) -> ModelSpec:
    return ModelSpec(
        "org/own",
        "text_encoder",
        ("encode",),
        outputs=("dense",),
        source=Source("org/own", own_code.COMMIT),
        load={"pooling": "mean"},
        remote_code=approved,
    )


def checkpoint(tmp_path: Path) -> tuple[Path, Path]:
    """A folder whose code writes a file when it runs, and that file."""
    told = tmp_path / "told"
    first = f"import pathlib; pathlib.Path({str(told)!r}).touch()"
    return own_code.checkpoint(tmp_path / "own", needs_four=False, first=first), told


def test_approved_code_runs_and_gives_finite_vectors(tmp_path: Path) -> None:
    folder, told = checkpoint(tmp_path)
    results = Alone(spec(approved=True), folder).run(Payload([{"text": "babo baco"}, {"text": "bado"}], {}))
    assert told.exists()
    assert all(np.isfinite(result["dense"]["values"]).all() for result in results)


def test_code_that_no_entry_approves_never_runs(tmp_path: Path) -> None:
    folder, told = checkpoint(tmp_path)
    with pytest.raises(ValueError, match="trust_remote_code"):
        Alone(spec(approved=False), folder)
    assert not told.exists()


def test_approval_of_a_repo_is_none_of_another_repos_code(tmp_path: Path) -> None:
    folder, told = checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"]["AutoModel"] = f"other/code--{config['auto_map']['AutoModel']}"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelLoadFailed, match="takes code from the repo 'other/code', which its entry does not approve"
    ):
        Alone(spec(approved=True), folder)
    assert not told.exists()
