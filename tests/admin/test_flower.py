"""Flower as we start it: it shows models and counts, no customer's text, and lets nobody change anything."""

import os
import runpy
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import celery
import httpx
import pytest
from pytest_django.fixtures import Settings

from project.cli import processes
from tests.admin.conftest import EVIL

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "project" / "flowerconfig.py"
TEXT = "a customer's secret sentence"


@pytest.fixture(scope="module")
def flower(valkey: str) -> Iterator[httpx.Client]:
    """A client of a Flower that listens to the session's Valkey."""
    port = processes.free_port()
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "project.settings.worker",
        "SHOAL_REDIS_URL": valkey,
        "SHOAL_FLOWER_PORT": str(port),
    }
    command = [sys.executable, "-m", "celery", "-A", "project", "flower", f"--conf={CONFIG}"]
    process = processes.spawn(command, cwd=ROOT, env=environment, output=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            wait_for(client)
            yield client
    finally:
        processes.end(process, grace=10)


def wait_for(client: httpx.Client) -> None:
    for _ in range(300):
        try:
            client.get("/healthcheck").raise_for_status()
            return
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail("Flower did not start within 30 s")


@pytest.fixture
def task_seen(flower: httpx.Client, valkey: str) -> str:
    """The id of a task that Flower heard of, sent by a client that hides nothing."""
    task_id = str(uuid.uuid4())
    app = celery.Celery(broker=valkey)
    fields = {"uuid": task_id, "name": f"shoal.{EVIL}", "args": "('org/model', 1 items)", "kwargs": TEXT}
    with app.connection() as connection, app.events.Dispatcher(connection, hostname="w@test") as events:
        for _ in range(100):  # Flower listens a moment after it answers
            events.send("task-received", **fields)
            events.send("task-succeeded", uuid=task_id, result=TEXT, runtime=0.1)
            if flower.get(f"/task/{task_id}").status_code == 200:
                return task_id
            time.sleep(0.1)
    pytest.fail("Flower did not hear of the task within 10 s")


def test_a_task_shows_its_model_and_no_text(flower: httpx.Client, task_seen: str) -> None:
    page = flower.get(f"/task/{task_seen}").text

    assert "org/model" in page
    assert TEXT not in page


def test_the_list_of_tasks_shows_its_model_and_no_text(flower: httpx.Client, task_seen: str) -> None:
    query: dict[str, str | int] = {"draw": 1, "start": 0, "length": 10, "search[value]": "", "order[0][column]": 0}
    rows = flower.get("/tasks/datatable", params={**query, "columns[0][data]": "name", "order[0][dir]": "asc"}).text

    assert "org/model" in rows
    assert TEXT not in rows


def test_names_are_escaped(flower: httpx.Client, task_seen: str) -> None:
    assert "<img src=x" not in flower.get(f"/task/{task_seen}").text


def test_it_hears_of_tasks_from_workers_that_send_no_events_by_themselves(
    flower: httpx.Client, valkey: str, tmp_path: Path
) -> None:
    (tmp_path / "quiet.py").write_text(f"import celery\napp = celery.Celery('quiet', broker={valkey!r})\n")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "celery", "-A", "quiet", "worker", "-P", "solo", "-n", "quiet@test"]
    worker = processes.spawn(command, cwd=tmp_path, env=environment, output=subprocess.DEVNULL)
    try:
        assert heard_of_a_task(flower, celery.Celery(broker=valkey))
    finally:
        processes.end(worker, grace=10)


def heard_of_a_task(flower: httpx.Client, app: celery.Celery) -> bool:
    for _ in range(150):
        sent = app.send_task("celery.backend_cleanup")
        time.sleep(0.2)
        if flower.get(f"/task/{sent.id}").status_code == 200:
            return True
    return False


@pytest.mark.parametrize(
    "path", ["/api/worker/shutdown/w@test", "/api/task/revoke/1", "/api/task/apply/shoal.encode", "/api/tasks"]
)
def test_nobody_changes_or_reads_anything_through_its_api(flower: httpx.Client, path: str) -> None:
    assert flower.post(path).status_code in (401, 403, 405)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "flower.example"])
def test_it_refuses_to_be_open_without_a_password(settings: Settings, host: str) -> None:
    settings.SHOAL_FLOWER_HOST = host

    with pytest.raises(SystemExit, match="SHOAL_FLOWER_AUTH"):
        runpy.run_path(str(CONFIG))


def test_a_password_opens_it_to_others(settings: Settings) -> None:
    settings.SHOAL_FLOWER_HOST = "0.0.0.0"
    settings.SHOAL_FLOWER_AUTH = "ada:lovelace"

    options = runpy.run_path(str(CONFIG))

    assert options["basic_auth"] == ["ada:lovelace"]
    assert options["read_only"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_needs_no_password(settings: Settings, host: str) -> None:
    settings.SHOAL_FLOWER_HOST = host

    assert runpy.run_path(str(CONFIG))["address"] == host
