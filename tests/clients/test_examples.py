"""The examples run from start to finish, offline, with the published client."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import stand_ins
from bench.system import ROOT, Serving, System

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The shipped catalog, with stand-ins for the weights that no package has."""
    folder = tmp_path_factory.mktemp("models")
    stand_ins.write_published(folder, folder.parent)
    system = System(tmp_path_factory.mktemp("examples"))
    with system.serve({"SHOAL_MODELS": str(folder), "SHOAL_DEVICE": "cpu", "SHOAL_OFFLINE": "1"}) as serving:
        yield serving


def run(python: Path, example: str, serving: Serving) -> list[str]:
    script = ROOT / "examples" / example
    done = subprocess.run([python, script, serving.url], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_invoice_is_found_ranked_and_read(serving: Serving, sdk_python: Path) -> None:
    lines = run(sdk_python, "invoice.py", serving)

    assert lines[0] == "nearest by vector:  chairs, paper, lease"
    assert [line.partition(":")[0] for line in lines if line.startswith("rank")] == ["rank 0", "rank 1"]
    assert lines[-1].startswith("read from ")
