"""Syncing brings the database in line with the files, and never touches what an administrator decided."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import DjangoAssertNumQueries

from catalog import loader
from catalog.models import Pool, RegisteredModel
from catalog.sync import Outcome, sync
from tests.catalog.conftest import ENTRIES, Write, document

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.django_db


def synced(folder: Path) -> Outcome:
    return sync(loader.load([folder]), NOW)


def only() -> RegisteredModel:
    return RegisteredModel.objects.get()


def test_new_files_become_models(folder: Path, write: Write) -> None:
    write(aliases=["short"], description="A model.", bundle="documents")

    outcome = synced(folder)

    row = only()
    assert outcome.added == ["org/model"]
    assert (row.name, row.family, row.bundle, row.primitives) == ("org/model", "fake", "documents", ["encode"])
    assert (row.aliases, row.description, row.source) == (["short"], "A model.", "file")
    assert row.is_served


def test_syncing_again_changes_nothing(folder: Path, write: Write) -> None:
    write()
    synced(folder)
    before = RegisteredModel.objects.values().get()

    outcome = sync(loader.load([folder]), datetime(2027, 1, 1, tzinfo=UTC))

    assert outcome == Outcome()
    assert outcome.lines() == []
    assert RegisteredModel.objects.values().get() == before


def test_changed_files_update_their_models(folder: Path, write: Write) -> None:
    write(max_tokens=256)
    synced(folder)
    write(max_tokens=512, aliases=["short"])

    outcome = synced(folder)

    assert outcome.updated == ["org/model"]
    assert only().entry["max_tokens"] == 512
    assert only().aliases == ["short"]


DECISIONS: list[dict[str, Any]] = [
    {"enabled": False},
    {"pinned": False},
    {"max_tokens": 100},
    {"budget": 7},
    {"max_items": 3},
]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: next(iter(decision)))
def test_decisions_outlive_a_changed_file(folder: Path, write: Write, decision: dict[str, Any]) -> None:
    write(pinned=True)
    synced(folder)
    RegisteredModel.objects.update(**decision)
    write(pinned=True, max_tokens=512, budget=4096, max_items=64)

    synced(folder)

    [name] = decision
    assert getattr(only(), name) == decision[name]


def test_a_pool_decided_on_outlives_a_changed_file(folder: Path, write: Write) -> None:
    write(pool="a")
    synced(folder)
    RegisteredModel.objects.update(pool=Pool.objects.create(name="mine"))
    write(pool="b")

    synced(folder)

    assert only().effective().spec.pool == "mine"


def test_a_decision_taken_back_gives_way_to_the_file(folder: Path, write: Write) -> None:
    write(budget=4096)
    synced(folder)
    RegisteredModel.objects.update(budget=7)
    RegisteredModel.objects.update(budget=None)

    assert only().effective().spec.budget == 4096


def test_a_vanished_file_disables_its_model(folder: Path, write: Write) -> None:
    write().unlink()
    write("kept.yaml", "org/kept")
    write("gone.yaml", "org/gone")
    synced(folder)
    (folder / "gone.yaml").unlink()

    outcome = synced(folder)

    assert outcome.lines() == ["disabled  org/gone: its file is gone"]
    assert not RegisteredModel.objects.get(name="org/gone").is_served
    assert RegisteredModel.objects.get(name="org/kept").is_served


def test_a_file_that_returns_brings_its_model_back_with_its_decisions(folder: Path, write: Write) -> None:
    file = write()
    synced(folder)
    RegisteredModel.objects.update(budget=7)
    file.unlink()
    synced(folder)
    write(max_tokens=99)

    outcome = synced(folder)

    assert outcome.returned == ["org/model"]
    assert only().is_served
    assert (only().effective().spec.budget, only().effective().spec.max_tokens) == (7, 99)


def test_a_model_disabled_by_hand_stays_so_when_its_file_returns(folder: Path, write: Write) -> None:
    file = write()
    synced(folder)
    RegisteredModel.objects.update(enabled=False)
    file.unlink()
    synced(folder)
    write()

    synced(folder)

    assert not only().is_served


def added_by_hand(**fields: Any) -> RegisteredModel:
    row = RegisteredModel(source=RegisteredModel.Source.ADMIN)
    row.set_entry(document(**fields))
    row.save()
    return row


def test_models_added_by_hand_are_left_alone(folder: Path, write: Write) -> None:
    added_by_hand(model_id="org/mine")
    write()

    synced(folder)

    assert RegisteredModel.objects.get(name="org/mine").is_served


@pytest.mark.parametrize("fields", [{"model_id": "org/mine"}, {"model_id": "org/new", "aliases": ["org/mine"]}])
def test_a_file_may_not_take_the_name_of_a_model_added_by_hand(
    folder: Path, write: Write, fields: dict[str, Any]
) -> None:
    mine = added_by_hand(model_id="org/mine", budget=7)
    write(**fields)

    outcome = synced(folder)

    assert outcome.refused == ["entry.yaml: 'org/mine' names org/mine, which was added in the admin"]
    assert only() == mine
    assert only().entry["budget"] == 7


def test_a_model_may_be_renamed_and_keep_its_old_name_as_an_alias(folder: Path, write: Write) -> None:
    write(model_id="org/old")
    synced(folder)
    write(model_id="org/new", aliases=["org/old"])

    outcome = synced(folder)

    assert (outcome.added, outcome.vanished, outcome.refused) == (["org/new"], ["org/old"], [])


def test_pools_that_entries_name_exist_afterwards(folder: Path, write: Write) -> None:
    write(pool="gpu-a")

    synced(folder)

    assert set(Pool.objects.values_list("name", flat=True)) == {"default", "gpu-a"}


def test_the_number_of_queries_does_not_grow_with_the_catalog(
    folder: Path, write: Write, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(20):
        write(f"{number}.yaml", f"org/model-{number}")
    entries = loader.load([folder])

    # the transaction's two ends, the pools twice, the lock, all rows, the new ones
    with django_assert_num_queries(7):
        sync(entries, NOW)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, data_dir: Path) -> str:
    """A new database of each kind, migrated."""
    url = f"sqlite:///{data_dir / 'other.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    finish(start(url, data_dir, "migrate", "--verbosity=0"))
    return str(url)


def start(database_url: str, data: Path, *arguments: str) -> "subprocess.Popen[str]":
    """A management command as an operator runs it, with a Redis that is away."""
    environment = {**os.environ, "SHOAL_DATABASE_URL": database_url, "SHOAL_DATA": str(data)}
    environment |= {"DJANGO_SETTINGS_MODULE": "project.settings.gateway", "SHOAL_REDIS_URL": "redis://127.0.0.1:1/0"}
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> list[str]:
    """The lines it wrote to stdout."""
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out.splitlines()


def test_many_additions_can_be_counted() -> None:
    outcome = Outcome(added=["org/a", "org/b"], vanished=["org/gone"])

    assert outcome.lines(2) == ["added     org/a", "added     org/b", "disabled  org/gone: its file is gone"]
    assert outcome.lines(1) == ["added     2 models", "disabled  org/gone: its file is gone"]


BOTH_ADDED = ["added     shoal/fake-large", "added     shoal/fake-small"]
AWAY = "2 entries, not published yet: Redis is away"


def test_sync_works_on_every_database(database_url: str, data_dir: Path) -> None:
    first = finish(start(database_url, data_dir, "sync_catalog", f"--folder={ENTRIES}"))
    second = finish(start(database_url, data_dir, "sync_catalog", f"--folder={ENTRIES}"))

    assert first == [*BOTH_ADDED, AWAY]
    assert second == ["nothing changed", AWAY]


def test_two_syncs_at_once_do_not_collide(database_url: str, data_dir: Path) -> None:
    both = [start(database_url, data_dir, "sync_catalog", f"--folder={ENTRIES}") for _ in range(2)]

    outcomes = sorted(finish(process) for process in both)

    assert outcomes == [[*BOTH_ADDED, AWAY], ["nothing changed", AWAY]]
