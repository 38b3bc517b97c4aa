"""The snapshot that is published: served models only, decisions applied, never an older one over a newer one."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.db.models.signals import post_init
from pytest_django.fixtures import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks, Settings

from catalog import registry
from catalog.models import LoRA, Pool, RegisteredModel
from catalog.snapshot import Snapshot
from protocol import names
from tests.catalog.conftest import document

pytestmark = pytest.mark.django_db


def registered(model_id: str = "org/model", decisions: dict[str, Any] | None = None, **fields: Any) -> RegisteredModel:
    row = RegisteredModel(source=RegisteredModel.Source.FILE, **(decisions or {}))
    row.set_entry(document(model_id, **fields))
    row.save()
    return row


@pytest.fixture
def state(redis_url: str, settings: Settings) -> "redis.Redis":
    settings.SHOAL_REDIS_URL = redis_url
    return redis.Redis.from_url(redis_url)


def published(state: "redis.Redis") -> Snapshot:
    text = state.get(names.CATALOG)
    assert isinstance(text, bytes)
    return Snapshot.from_json(text)


def test_a_snapshot_crosses_redis_unchanged(state: "redis.Redis") -> None:
    registered(
        dims={"dense": 64},
        matryoshka=[16, 64],
        source={"repo": "org/weights", "revision": "main"},
        load={"dtype": "float16"},
        aliases=["short"],
        profiles={"query": {"is_query": True, "output_types": ["dense"]}},
        pinned=True,
        description="A model.",
    )

    version = registry.publish()

    sent, received = registry.build(version), published(state)
    assert received.version == version
    assert received.models["org/model"].spec == sent.models["org/model"].spec
    assert received.models["org/model"].spec.digest == sent.models["org/model"].spec.digest
    assert received.resolve("short:query").options == {"is_query": True, "output_types": ["dense"]}
    assert received.models["org/model"].pinned


def test_decisions_are_in_the_snapshot(state: "redis.Redis") -> None:
    pool = Pool.objects.create(name="mine")
    decisions = {"pinned": True, "pool": pool, "max_tokens": 128, "budget": 7, "max_items": 3}
    registered(decisions=decisions, max_tokens=512, budget=4096)

    registry.publish()

    model = published(state).models["org/model"]
    assert model.pinned
    assert (model.spec.pool, model.spec.max_tokens, model.spec.budget, model.spec.max_items) == ("mine", 128, 7, 3)


def test_limits_of_scheduling_do_not_change_the_digest() -> None:
    row = registered(budget=4096)
    before = row.effective().spec.digest

    row.budget, row.max_items, row.pool = 7, 3, Pool(name="mine")

    assert row.effective().spec.digest == before


def test_models_that_are_not_served_are_not_in_the_snapshot() -> None:
    registered("org/off", {"enabled": False})
    registered("org/gone", {"missing_since": "2026-11-30T00:00Z"})
    registered("org/on")

    assert list(registry.build(1).models) == ["org/on"]


def test_one_row_that_is_not_valid_any_more_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    registered("org/good")
    registered("org/bad")
    RegisteredModel.objects.filter(name="org/bad").update(entry={"id": "org/bad"})

    assert list(registry.build(1).models) == ["org/good"]
    assert "entry left out" in caplog.text


def test_building_asks_once_however_many_models(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(5):
        registered(f"org/model-{number}", {"pool": Pool.objects.create(name=f"pool-{number}")})

    with django_assert_num_queries(1):
        registry.build(1)


def test_versions_grow_even_when_redis_lost_its_data(state: "redis.Redis") -> None:
    first = registry.publish()
    second = registry.publish()
    state.flushall()

    third = registry.publish()

    assert first < second <= third


def test_a_publisher_that_was_overtaken_reads_the_database_again(state: "redis.Redis") -> None:
    registered("org/first")

    def overtake(**event: Any) -> None:
        """Somebody else adds a model and publishes it, just when the first publisher has read its rows."""
        post_init.disconnect(overtake, sender=RegisteredModel)
        registered("org/second")
        registry.publish()

    post_init.connect(overtake, sender=RegisteredModel)
    registry.publish()

    assert set(published(state).models) == {"org/first", "org/second"}


@pytest.mark.django_db(transaction=True)
def test_a_saved_model_is_published(state: "redis.Redis") -> None:
    row = registered()
    assert set(published(state).models) == {"org/model"}

    row.enabled = False
    row.save()
    assert set(published(state).models) == set()


@pytest.mark.django_db(transaction=True)
def test_a_deleted_model_is_published(state: "redis.Redis") -> None:
    row = registered()

    row.delete()

    assert set(published(state).models) == set()


@pytest.mark.parametrize("make", [lambda: Pool(name="p"), lambda: LoRA(name="l", base=registered())])
def test_pools_and_loras_are_published_too(
    make: Callable[[], Model], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    row = make()

    with django_capture_on_commit_callbacks() as callbacks:
        row.save()

    assert callbacks == [registry.publish_safely]


def test_publishing_announces_the_version(state: "redis.Redis") -> None:
    with state.pubsub(ignore_subscribe_messages=True) as announcements:
        announcements.subscribe(names.CATALOG_VERSION)
        announcements.get_message(timeout=1)

        version = registry.publish()

        message = announcements.get_message(timeout=5)
    assert message is not None
    assert int(message["data"]) == version


@pytest.mark.django_db(transaction=True)
def test_a_change_is_kept_while_redis_is_away(caplog: pytest.LogCaptureFixture) -> None:
    registered()

    assert RegisteredModel.objects.count() == 1
    assert "catalog not published" in caplog.text


def test_the_snapshot_is_json_without_secrets_of_ours(state: "redis.Redis") -> None:
    registered()
    registry.publish()

    wire = json.loads(state.get(names.CATALOG) or b"")

    assert set(wire) == {"version", "models"}


def checked(decisions: dict[str, Any] | None = None, **fields: Any) -> None:
    RegisteredModel(entry=document("org/fresh", **fields), **(decisions or {})).full_clean(
        exclude=RegisteredModel.COPIED
    )


def test_an_entry_added_by_hand_is_checked_like_a_file() -> None:
    with pytest.raises(ValidationError, match="unknown key 'famly'; did you mean 'family'"):
        checked(famly="x")


@pytest.mark.parametrize("fields", [{"id": "org/taken"}, {"aliases": ["org/taken"]}, {"aliases": ["nick"]}])
def test_a_name_in_use_is_refused(fields: dict[str, Any]) -> None:
    registered("org/taken", aliases=["nick"])

    with pytest.raises(ValidationError, match="already names org/taken"):
        checked(**fields)


def test_a_limit_may_not_exceed_what_the_model_reads() -> None:
    with pytest.raises(ValidationError, match="The model reads 512 tokens at most"):
        checked({"max_tokens": 513}, max_tokens=512)
