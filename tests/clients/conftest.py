"""The whole product, started as users start it, for clients that were published before it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import clients
from bench.system import Serving
from examples.needs import SDK, Client
from tests.conftest import missing

ENTRIES = Path(__file__).with_name("entries")
COLD_WAIT_S = 0.5  # shorter than the slow model's load: its first caller is told to come back


@pytest.fixture(scope="session")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`./shoal serve` with the tests' models in its catalog."""
    settings = {"SHOAL_CATALOG": str(ENTRIES), "SHOAL_COLD_WAIT_S": str(COLD_WAIT_S), "SHOAL_OFFLINE": "1"}
    serving = Serving(tmp_path_factory.mktemp("shoal"), settings)
    try:
        serving.warm("shoal-tests/minilm")
        yield serving
    finally:
        serving.stop()


@pytest.fixture(scope="session")
def sdk_python() -> Path:
    """A Python in which the published SDK is installed, kept between sessions."""
    return client_python(SDK)


def client_python(client: Client) -> Path:
    """A Python with a published client, kept between sessions; skips where it cannot be had."""
    try:
        return clients.environment(Path.home() / ".cache" / "shoal-tests", client.packages, client.oldest)
    except clients.NoEnvironment as reason:
        if reason.has_python:
            missing(str(reason))
        pytest.skip(str(reason))
