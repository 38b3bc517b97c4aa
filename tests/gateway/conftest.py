"""The HTTP application in this process, with a scripted worker behind it and a real Valkey between them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from catalog.keys import KeySnapshot
from catalog.snapshot import Model, Snapshot
from inference.gateway import Gateway, Limits
from inference.lean import LeanHandler
from inference.remote_media import RemoteMedia
from protocol.spec import ModelSpec
from tests.gateway.double import DIMS, WorkerDouble

FAKE = ModelSpec("acme/fake", "fake", ("encode",), outputs=("dense",), dims={"dense": DIMS}, max_tokens=512)
NESTED = ModelSpec(
    "acme/nested", "fake", ("encode",), outputs=("dense",), dims={"dense": DIMS}, matryoshka=(2, 4, 8), load={"n": 1}
)
MULTI = ModelSpec("acme/multi", "fake", ("encode",), outputs=("sparse", "multivector"), load={"n": 2})
RANKER = ModelSpec("acme/ranker", "fake", ("score",), load={"n": 3})

CATALOG = Snapshot(
    7,
    (
        Model(
            FAKE,
            profiles={"default": {}, "query": {"is_query": True}, "short": {"instruction": "be brief"}},
            aliases=("fake-alias",),
        ),
        Model(NESTED),
        Model(MULTI),
        Model(RANKER),
    ),
)

LIMITS = Limits(
    request_timeout_s=5, cold_wait_s=1.0, provision_wait_s=0.5, task_ttl_s=60, max_pending=64, max_body_bytes=8 << 20
)


@dataclass
class Held:
    """A follower that holds what the test gave it."""

    current: Any

    def start(self) -> None: ...
    def stop(self) -> None: ...


@dataclass
class Setup:
    """What a test may change about the gateway before it starts."""

    redis_url: str
    data_dir: Path
    broker_url: str = ""
    limits: Limits = LIMITS
    require_keys: bool = False
    catalog: Held = field(default_factory=lambda: Held(CATALOG))
    keys: Held = field(default_factory=lambda: Held(KeySnapshot()))
    media: RemoteMedia = field(default_factory=lambda: RemoteMedia(()))
    usage: list[Any] = field(default_factory=list)  # what was handed over

    def make(self) -> Gateway:
        return Gateway(
            broker_url=self.broker_url or self.redis_url,
            redis_url=self.redis_url,
            data_dir=self.data_dir,
            catalog=self.catalog,
            keys=self.keys,
            limits=self.limits,
            record_usage=self.usage.append,
            require_keys=self.require_keys,
            media=self.media,
        )


@pytest.fixture
def setup(request: pytest.FixtureRequest, redis_url: str, data_dir: Path) -> Setup:
    """Parametrize it indirectly with limits to change."""
    return Setup(redis_url, data_dir, limits=replace(LIMITS, **getattr(request, "param", {})))


def limits(**changes: float) -> pytest.MarkDecorator:
    """Run a test with these limits."""
    return pytest.mark.parametrize("setup", [pytest.param(changes, id="limits")], indirect=True)


@pytest.fixture
def worker(setup: Setup) -> Iterator[WorkerDouble]:
    double = WorkerDouble(setup.redis_url, setup.data_dir / "blobs", models=(FAKE, NESTED, MULTI)).start()
    yield double
    double.stop()


@pytest.fixture
async def app(setup: Setup) -> AsyncIterator[LeanHandler]:
    """The lean handler, its gateway connected."""
    handler = LeanHandler(setup.make)
    async with handler.running() as gateway:
        await until(lambda: gateway.mailbox.connected and gateway.publisher.connected)
        yield handler


@pytest.fixture
async def client(app: LeanHandler) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver", timeout=30) as client:
        yield client


async def until(holds: Callable[[], Any], within: float = 5.0) -> None:
    """Wait for something another thread or task will bring about."""
    ends = time.monotonic() + within
    while not holds():
        assert time.monotonic() < ends, "it did not happen in time"
        await asyncio.sleep(0.01)
