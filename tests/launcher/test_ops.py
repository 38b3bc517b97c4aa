"""The ops worker as deployed: it takes its own queue, and its task does what it says."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
import yaml
from celery import Celery

from project.cli import processes


@pytest.mark.timeout(120)
def test_expired_sessions_are_cleared(redis_url: str, postgres_url: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SHOAL_DATA": str(tmp_path),
        "SHOAL_REDIS_URL": redis_url,
        "SHOAL_DATABASE_URL": postgres_url,
        "DJANGO_SETTINGS_MODULE": "project.settings.ops",
    }
    prepare = [sys.executable, "-m", "project.cli.prepare"]
    subprocess.run(prepare, env=environment, cwd=processes.ROOT, check=True, capture_output=True)
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("INSERT INTO django_session VALUES ('old', '', now() - interval '1 day')")
        composed = yaml.safe_load((processes.ROOT / "docker-compose.yml").read_text())["services"]["ops"]["command"]
        arguments = [word.replace("/data", str(tmp_path)) for word in composed[1:]]
        worker = processes.spawn(
            [sys.executable, *arguments],
            env=environment,
            cwd=processes.ROOT,
            output=subprocess.DEVNULL,
        )
        Celery(broker=redis_url).send_task("ops.clear_sessions", queue="ops")
        deadline = time.monotonic() + 60
        while database.execute("SELECT 1 FROM django_session").fetchall() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = database.execute("SELECT 1 FROM django_session").fetchall()
    processes.end(worker, grace=20)
    assert left == []
