"""Followers: fresh within two seconds, and unimpressed by a Redis that goes away."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone
from pytest_django.fixtures import Settings

from catalog import issuing, registry
from catalog.follow import SnapshotFollower
from catalog.issuing import KeyFollower
from catalog.models import ApiKey, RegisteredModel
from catalog.snapshot import Snapshot
from project.cli import embedded, processes
from protocol import names
from tests.catalog.conftest import document

pytestmark = pytest.mark.django_db(transaction=True)

NOBODY = "redis://127.0.0.1:1/0"


def eventually(holds: Callable[[], object], within: float = 2.0) -> None:
    """Wait for something another thread does; fails after `within` seconds."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.01)


@pytest.fixture
def state(redis_url: str, settings: Settings) -> "redis.Redis":
    settings.SHOAL_REDIS_URL = redis_url
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def start() -> Iterator[Callable[[Any], Any]]:
    """Start a follower that ends with the test."""
    started = []

    def start(follower: Any) -> Any:
        started.append(follower)
        return follower.start()

    yield start
    for follower in started:
        follower.stop()


Start = Callable[[Any], Any]


def registered(model_id: str = "org/model") -> RegisteredModel:
    row = RegisteredModel()
    row.set_entry(document(model_id))
    row.save()
    return row


def test_a_follower_starts_with_what_is_published(state: "redis.Redis", redis_url: str, start: Start) -> None:
    registered()

    follower = start(SnapshotFollower(redis_url))

    assert set(follower.current.models) == {"org/model"}


def test_a_change_is_seen_within_two_seconds(state: "redis.Redis", redis_url: str, start: Start) -> None:
    row = registered()
    follower = start(SnapshotFollower(redis_url))

    row.enabled = False
    row.save()

    eventually(lambda: not follower.current.models)


def test_a_change_whose_announcement_is_lost_is_seen_within_two_seconds(
    state: "redis.Redis", redis_url: str, start: Start
) -> None:
    follower = start(SnapshotFollower(redis_url))

    state.set(names.CATALOG, Snapshot(7, ()).to_json())
    state.set(names.CATALOG_VERSION, 7)

    eventually(lambda: follower.current.version == 7)


def test_a_snapshot_in_use_does_not_change(state: "redis.Redis", redis_url: str, start: Start) -> None:
    row = registered()
    follower = start(SnapshotFollower(redis_url))
    held = follower.current

    row.delete()
    eventually(lambda: not follower.current.models)

    assert set(held.models) == {"org/model"}


def test_a_catalog_that_cannot_be_read_leaves_the_old_one(
    state: "redis.Redis", redis_url: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    registered()
    follower = start(SnapshotFollower(redis_url))

    state.set(names.CATALOG, '{"version": 9, "models": [{"from": "the future"}]}')
    state.set(names.CATALOG_VERSION, 9)
    eventually(lambda: "refresh failed" in caplog.text)
    time.sleep(1.5)  # two more looks

    assert set(follower.current.models) == {"org/model"}
    assert caplog.text.count("refresh failed") == 1


def test_a_worker_waits_for_a_catalog(state: "redis.Redis", redis_url: str, start: Start) -> None:
    follower = start(SnapshotFollower(redis_url))
    assert not follower.current.models

    registered()

    eventually(lambda: set(follower.current.models) == {"org/model"})


def test_a_gateway_publishes_a_catalog_that_redis_lost(state: "redis.Redis", redis_url: str, start: Start) -> None:
    registered()
    gateway = start(SnapshotFollower(redis_url, restore=registry.restore))
    worker = start(SnapshotFollower(redis_url))

    state.flushall()
    eventually(lambda: state.get(names.CATALOG_VERSION) is not None)

    assert set(gateway.current.models) == {"org/model"}
    eventually(lambda: set(worker.current.models) == {"org/model"})


def test_a_follower_starts_while_redis_is_away(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    follower = start(SnapshotFollower(NOBODY))
    time.sleep(1.5)

    assert not follower.current.models
    assert caplog.text.count("redis is away") == 1


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of this test's own, which it may stop and start again on the same port."""
    plan = embedded.plan(tmp_path_factory.mktemp("redis"), embedded.from_wheel())
    running = []

    class Server:
        url = plan.url

        def up(self) -> None:
            running.append(processes.spawn(plan.command))
            embedded.wait_until_ready(plan.url, running[-1])

        def down(self) -> None:
            processes.end(running.pop(), grace=5)

    yield Server()
    for process in running:
        processes.end(process, grace=5)


def test_a_change_made_while_redis_was_away_is_published_when_it_is_back(
    own_server: Any, settings: Settings, start: Start
) -> None:
    settings.SHOAL_REDIS_URL = own_server.url
    own_server.up()
    registered("org/first")
    gateway = start(SnapshotFollower(own_server.url, restore=registry.restore))
    worker = start(SnapshotFollower(own_server.url))

    own_server.down()
    registered("org/second")
    assert set(worker.current.models) == {"org/first"}
    own_server.up()

    eventually(lambda: set(worker.current.models) == {"org/first", "org/second"}, within=6)
    eventually(lambda: set(gateway.current.models) == {"org/first", "org/second"})


def new_key(**fields: Any) -> ApiKey:
    row = ApiKey(name="test", **fields)
    issuing.issue(row)
    row.save()
    return row


def test_a_new_key_is_known_within_two_seconds(state: "redis.Redis", redis_url: str, start: Start) -> None:
    follower = start(KeyFollower(redis_url))

    row = new_key(allowed_models=["org/model"], primitives=["score"], lane="bulk", is_admin=True)

    eventually(lambda: len(follower.current) == 1)
    record = follower.current.find(row.prefix)
    assert (record.name, record.lane, record.is_admin) == ("test", "bulk", True)
    assert (record.models, record.primitives) == ({"org/model"}, {"score"})


def test_a_revoked_key_is_gone_within_two_seconds(state: "redis.Redis", redis_url: str, start: Start) -> None:
    row = new_key()
    follower = start(KeyFollower(redis_url))
    assert len(follower.current) == 1

    issuing.revoke(row, timezone.now())

    eventually(lambda: len(follower.current) == 0)


def test_keys_are_known_without_redis(start: Start) -> None:
    tomorrow = timezone.now() + timedelta(days=1)
    row = new_key(expires=tomorrow)

    follower = start(KeyFollower(NOBODY))

    assert follower.current.find(row.prefix).expires == tomorrow.timestamp()


def test_no_key_material_is_in_redis(state: "redis.Redis", redis_url: str, start: Start) -> None:
    row = new_key()
    start(KeyFollower(redis_url))

    assert state.keys() == [names.KEYS_VERSION.encode()]
    assert row.digest.encode() not in (state.get(names.KEYS_VERSION) or b"")
