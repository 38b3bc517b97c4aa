"""Who imports whom: the contracts of pyproject.toml, and what each role really has in memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = ("torch", "transformers", "sentence_transformers")
WEB = ("rest_framework", "drf_spectacular", "unfold", "inference", "admin")


def loaded(program: str, suspects: tuple[str, ...], settings: str, tmp_path: Path) -> list[str]:
    """Which of `suspects` a fresh interpreter has in memory after `program`."""
    code = f"{program}\nimport json, sys\nprint(json.dumps([name for name in {suspects!r} if name in sys.modules]))"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": settings, "SHOAL_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-logo"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_a_gateway_has_no_torch_and_no_worker(tmp_path: Path) -> None:
    suspects = (*HEAVY, "workers", "workers.dispatcher")
    assert loaded("import project.asgi", suspects, "project.settings.gateway", tmp_path) == []


def test_a_worker_has_no_web_framework_and_no_torch(tmp_path: Path) -> None:
    program = "import django; django.setup(); import workers.bootstrap, workers.consumer, workers.pool"
    assert loaded(program, (*HEAVY, *WEB), "project.settings.worker", tmp_path) == []


@pytest.mark.parametrize("module", ["serve", "stop"])
def test_the_launcher_stays_small(module: str, tmp_path: Path) -> None:
    suspects = (*HEAVY, *WEB, "catalog", "django.apps", "numpy")
    assert loaded(f"import project.cli.{module}", suspects, "project.settings.gateway", tmp_path) == []
