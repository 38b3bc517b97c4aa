"""The compose file and the Dockerfiles, read: they cannot be run here, but they must not name what is not there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from project.cli.options import parser

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("shoal-")]
DOCKERFILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
SETTINGS = set(re.findall(r"SHOAL_\w+", "".join(file.read_text() for file in (ROOT / "project/settings").glob("*.py"))))
SECRETS = ("SHOAL_SECRET_KEY", "POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "VALKEY_PASSWORD", "SHOAL_FLOWER_AUTH")


def requirement_files(text: str) -> list[str]:
    return re.findall(r"-r (requirements\S+)", text)


def test_every_role_is_there() -> None:
    assert set(SERVICES) == {
        *("rabbitmq", "valkey", "postgres"),
        *("prepare", "gateway", "worker", "worker-gpu", "ops", "flower"),
    }


def test_only_the_gpu_worker_waits_for_its_profile() -> None:
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        "worker-gpu": ["gpu"]
    }


def test_the_gpu_worker_reserves_a_card() -> None:
    (device,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


@pytest.mark.parametrize("name", OURS)
def test_every_setting_it_passes_exists(name: str) -> None:
    passed = {variable for variable in SERVICES[name]["environment"] if variable.startswith("SHOAL_")}
    assert passed <= SETTINGS


@pytest.mark.parametrize("name", OURS)
def test_settings_modules_exist(name: str) -> None:
    module = SERVICES[name]["environment"].get("DJANGO_SETTINGS_MODULE", "project.settings.gateway")
    assert (ROOT / (module.replace(".", "/") + ".py")).is_file()


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "prepare"])
def test_long_lived_services_are_watched_restarted_and_given_time(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"]
    assert service["stop_grace_period"]
    assert service["restart"] == "unless-stopped"


def test_workers_have_longer_to_end_than_they_drain() -> None:
    assert SERVICES["worker"]["stop_grace_period"] == "40s"


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_have_no_default(secret: str) -> None:
    uses = re.findall(rf"\$\{{{secret}(.)", (ROOT / "docker-compose.yml").read_text())
    assert uses
    assert set(uses) == {":"}
    assert f"${{{secret}:-" not in (ROOT / "docker-compose.yml").read_text()
    assert f"\n{secret}=\n" in (ROOT / "deploy/example.env").read_text()


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_workers_hold_neither_database_nor_secret(name: str) -> None:
    assert not {"SHOAL_DATABASE_URL", "SHOAL_SECRET_KEY"} & set(SERVICES[name]["environment"])


def test_the_gateway_asks_for_keys() -> None:
    assert SERVICES["gateway"]["environment"]["SHOAL_REQUIRE_KEYS"] == "1"


@pytest.mark.parametrize("name", ["gateway", "flower"])
def test_doors_open_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name]["ports"])


def test_volumes_are_declared() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", ())]
    assert {mount.partition(":")[0] for mount in mounts} == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", OURS)
def test_its_dockerfile_exists(name: str) -> None:
    build = SERVICES[name].get("build")
    assert build is not None
    assert ROOT / build["dockerfile"] in DOCKERFILES


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_what_a_dockerfile_copies_exists_and_is_not_ignored(file: Path) -> None:
    copied = re.findall(r"^COPY (\S+)/ ", file.read_text(), re.M)
    let_in = re.findall(r"^!(\S+)/$", (ROOT / ".dockerignore").read_text(), re.M)
    assert copied
    assert all((ROOT / folder).is_dir() for folder in copied)
    assert set(copied) <= set(let_in)


@pytest.mark.parametrize(
    ("dockerfile", "settings", "program"),
    [
        ("gateway", "gateway", "import project.asgi, project.cli.roles, project.cli.prepare, project.ops"),
        ("gateway", "ops", "import django; django.setup(); import project.ops"),
        ("worker", "worker", "import django; django.setup(); import workers.bootstrap, workers.consumer, workers.pool"),
        ("worker", "worker", "import project.cli.roles, project.cli.status, workers.engine.main"),
    ],
)
def test_an_image_has_all_the_code_it_runs(tmp_path: Path, dockerfile: str, settings: str, program: str) -> None:
    text = (ROOT / f"deploy/{dockerfile}.Dockerfile").read_text()
    for folder in re.findall(r"^COPY (\S+)/ ", text, re.M):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "DJANGO_SETTINGS_MODULE": f"project.settings.{settings}",
        "SHOAL_DATA": str(tmp_path / "data"),
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_what_a_dockerfile_installs_exists(file: Path) -> None:
    named = requirement_files(file.read_text())
    assert named
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_containers_do_not_run_as_root(file: Path) -> None:
    assert re.search(r"^USER shoal$", file.read_text(), re.M)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_containers_run_a_command_there_is(file: Path) -> None:
    command = re.findall(r'"([^"]+)"', file.read_text().rpartition("CMD ")[2])
    assert command[:3] == ["python", "-m", "project.cli"]
    assert parser().parse_args(command[3:]).command == command[3]


def test_the_gateways_image_has_no_torch() -> None:
    text = (ROOT / "requirements/gateway.txt").read_text() + (ROOT / "requirements/base.txt").read_text()
    assert "torch" not in text


@pytest.mark.parametrize(
    "file", ["requirements.txt", *(f"requirements/{n}.txt" for n in ("base", "gateway", "worker", "dev", "gpu"))]
)
def test_every_requirement_is_pinned(file: str) -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    loose = [line for line in lines if line and not line.startswith("-r ") and not re.fullmatch(r"\S+==\S+", line)]
    assert loose == []


def test_gpu_pins_sglang_and_flash_attention() -> None:
    text = (ROOT / "requirements/gpu.txt").read_text()
    assert re.search(r"^sglang==", text, re.M)
    assert re.search(r"^flash-attn==", text, re.M)
