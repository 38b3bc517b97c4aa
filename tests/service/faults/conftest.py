"""Systems that may be hurt, on each broker that this machine has. SHOAL_FAULT_REQUESTS scales the runs down."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.service.faults import rabbitmq
from tests.service.faults.system import RedisServer, Server, System, make_database, make_model
from tests.service.harness import Fleet, Gateway, Services, wait_until


@pytest.fixture(scope="session")
def rabbitmq_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rabbitmq.Node]:
    """The session's own node: tests may kill it, and leave it running."""
    script = rabbitmq.server()
    if script is None:
        missing("RabbitMQ is not installed")
    node = rabbitmq.Node(script, tmp_path_factory.mktemp("rabbitmq") / "node")
    node.start()
    yield node
    node.stop()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RedisServer]:
    """This test's Redis."""
    server = RedisServer(tmp_path / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, state: RedisServer) -> Server:
    """Both brokers in turn; with Redis it is the same server that holds all else, as by default."""
    server: Server = state if request.param == "redis" else request.getfixturevalue("rabbitmq_node")
    return server


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_database(tmp_path_factory.mktemp("database"))


@pytest.fixture
def make_system(state: RedisServer, broker: Server, database: Path, tmp_path: Path) -> Iterator[Callable[..., System]]:
    """Starts one; the options are of its model's load and, as `settings` and `worker_settings`, of its processes.

    At the end nothing of it may live.
    """
    made: list[System] = []

    def make(
        *, settings: dict[str, Any] | None = None, worker_settings: dict[str, Any] | None = None, **load: Any
    ) -> System:
        mark = {"SHOAL_FAULT_FOLDER": str(tmp_path)}
        system = System(tmp_path, state, broker, make_model(**load), database, mark | (settings or {}))
        made.append(system)
        system.start(worker_settings=worker_settings)
        return system

    yield make
    for system in made:
        system.stop()
        wait_until(lambda: not system.leftovers(), 3, "the end of all processes")  # noqa: B023


@pytest.fixture
def services(broker: Server, state: RedisServer) -> Services:
    """For workers without a gateway: a stand-in sends what a test wants to have in the broker."""
    return Services(broker.url, state.url)


@pytest.fixture
def fleet(services: Services, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(services, tmp_path)
    yield fleet
    fleet.end()


@pytest.fixture
def stand_in(services: Services) -> Iterator[Gateway]:
    gateway = Gateway(services)
    yield gateway
    gateway.close()


@pytest.fixture
def requests() -> int:
    """How many each run sends: enough to see a fault through; with 10,000 the suite takes three quarters of an hour."""
    return int(os.environ.get("SHOAL_FAULT_REQUESTS", "1000"))
