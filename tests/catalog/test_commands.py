"""The management commands an operator types."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django.fixtures import Settings

from catalog import keys
from catalog.issuing import read_keys
from catalog.models import ApiKey, RegisteredModel
from tests.catalog.conftest import ENTRIES, Write

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; returns what it wrote to stdout."""

    def run(*arguments: str) -> str:
        call_command(*arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def catalog(run: Any) -> None:
    run("sync_catalog", f"--folder={ENTRIES}")


def test_sync_says_what_changed_and_that_redis_is_away(run: Any) -> None:
    assert run("sync_catalog", f"--folder={ENTRIES}").splitlines() == [
        "added     shoal/fake-large",
        "added     shoal/fake-small",
        "2 entries, not published yet: Redis is away",
    ]


def test_sync_publishes(run: Any, redis_url: str, settings: Settings) -> None:
    settings.SHOAL_REDIS_URL = redis_url

    assert "2 entries, published as version" in run("sync_catalog", f"--folder={ENTRIES}")


def test_sync_reads_the_operators_folder_beside_the_shipped_entries(
    run: Any, folder: Path, write: Write, settings: Settings
) -> None:
    write()
    settings.SHOAL_CATALOG = folder

    assert "added     org/model" in run("sync_catalog").splitlines()


def test_check_changes_nothing(run: Any) -> None:
    assert run("sync_catalog", "--check", f"--folder={ENTRIES}") == "2 entries, all valid\n"
    assert not RegisteredModel.objects.exists()


def test_sync_of_a_wrong_file_changes_nothing_and_names_it(run: Any, folder: Path, write: Write) -> None:
    write("good.yaml", "org/good")
    write("bad.yaml", "org/bad", famly="x")

    with pytest.raises(CommandError, match=r"bad\.yaml: unknown key 'famly'; did you mean 'family'\?"):
        run("sync_catalog", f"--folder={folder}")
    assert not RegisteredModel.objects.exists()


def test_publish_says_when_redis_is_away(run: Any) -> None:
    with pytest.raises(CommandError, match=r"Redis cannot be reached .*; check SHOAL_REDIS_URL"):
        run("publish_catalog")


@pytest.mark.usefixtures("catalog")
def test_models_are_listed(run: Any) -> None:
    RegisteredModel.objects.filter(name="shoal/fake-small").update(enabled=False)

    assert run("models").splitlines() == [
        "model             primitives  family  pool     state     pinned",
        "shoal/fake-large  encode      fake    large    enabled   pinned",
        "shoal/fake-small  encode      fake    default  disabled",
    ]


def test_a_created_key_passes_and_is_shown_alone_on_stdout(run: Any) -> None:
    text = run("create_key", "--name=laptop").strip()

    record = keys.authenticate(read_keys(), text, timezone.now().timestamp())
    assert (record.name, record.lane, record.is_admin) == ("laptop", "interactive", False)


@pytest.mark.usefixtures("catalog")
def test_a_key_is_created_with_limits(run: Any) -> None:
    limits = ["--models=fake-small", "--primitives=encode,score", "--lane=bulk", "--admin", "--expires-days=30"]
    run("create_key", "--name=job", *limits)

    row = ApiKey.objects.get()
    assert row.allowed_models == ["shoal/fake-small"]  # the alias became the id
    assert (row.primitives, row.lane, row.is_admin) == (["encode", "score"], "bulk", True)
    assert row.expires is not None
    assert timedelta(days=29) < row.expires - timezone.now() <= timedelta(days=30)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("--models=shoal/fake-smal", "did you mean shoal/fake-small"),
        ("--primitives=embed", "'embed' is not a primitive; there are encode"),
        ("--expires-days=0", "--expires-days must be at least 1"),
    ],
)
@pytest.mark.usefixtures("catalog")
def test_a_key_with_limits_that_make_no_sense_is_not_created(run: Any, limit: str, expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        run("create_key", "--name=job", limit)
    assert not ApiKey.objects.exists()


def test_a_key_is_revoked_by_prefix_or_as_a_whole(run: Any) -> None:
    first, second = run("create_key", "--name=a").strip(), run("create_key", "--name=b").strip()

    run("revoke_key", first.split("-")[2])
    run("revoke_key", second)

    assert len(read_keys()) == 0
    assert ApiKey.objects.count() == 2


def test_revoking_an_unknown_key_says_so(run: Any) -> None:
    with pytest.raises(CommandError, match="no key with the prefix 'abc'"):
        run("revoke_key", "abc")


def test_keys_are_listed_without_secrets(run: Any) -> None:
    text = run("create_key", "--name=laptop").strip()
    prefix, secret = text.split("-", 3)[2:]

    listing = run("list_keys")

    assert f"{prefix}  laptop  active" in listing
    assert secret not in listing
    assert ApiKey.objects.get().digest not in listing


def test_the_first_start_makes_an_admin_who_can_log_in(run: Any) -> None:
    made = json.loads(run("ensure_admin"))

    assert made["created"]
    user = authenticate(username=made["username"], password=made["password"])
    assert user is not None
    assert user.is_superuser


def test_a_later_start_leaves_users_alone(run: Any) -> None:
    user = get_user_model().objects.create_superuser("me", password="mine")

    assert json.loads(run("ensure_admin")) == {"created": False}
    assert list(get_user_model().objects.all()) == [user]
