"""Workers on each broker that this machine has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.harness import Fleet, Gateway, Services


@pytest.fixture(params=["redis", "rabbitmq"])
def services(request: pytest.FixtureRequest, redis_url: str) -> Services:
    """Both brokers in turn; Redis is always there for the rest."""
    broker = redis_url if request.param == "redis" else request.getfixturevalue("rabbitmq_url")
    return Services(broker, redis_url)


@pytest.fixture
def on_redis(redis_url: str) -> Services:
    return Services(redis_url, redis_url)


@pytest.fixture
def on_rabbitmq(rabbitmq_url: str, redis_url: str) -> Services:
    return Services(rabbitmq_url, redis_url)


def _fleet(services: Services, folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(services, folder)
    yield fleet
    fleet.end()


def _gateway(services: Services) -> Iterator[Gateway]:
    gateway = Gateway(services)
    yield gateway
    gateway.close()


@pytest.fixture
def fleet(services: Services, tmp_path: Path) -> Iterator[Fleet]:
    yield from _fleet(services, tmp_path)


@pytest.fixture
def gateway(services: Services) -> Iterator[Gateway]:
    yield from _gateway(services)


@pytest.fixture
def redis_fleet(on_redis: Services, tmp_path: Path) -> Iterator[Fleet]:
    yield from _fleet(on_redis, tmp_path)


@pytest.fixture
def redis_gateway(on_redis: Services) -> Iterator[Gateway]:
    yield from _gateway(on_redis)


@pytest.fixture
def rabbitmq_fleet(on_rabbitmq: Services, tmp_path: Path) -> Iterator[Fleet]:
    yield from _fleet(on_rabbitmq, tmp_path)


@pytest.fixture
def rabbitmq_gateway(on_rabbitmq: Services) -> Iterator[Gateway]:
    yield from _gateway(on_rabbitmq)
