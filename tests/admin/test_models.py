"""Curating models: adding by document, deciding, and what a file's entry keeps for itself."""

import html
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from catalog.models import LoRA, Pool, RegisteredModel
from catalog.snapshot import Snapshot
from protocol import names
from tests.admin.conftest import Beat, entry, registered, resident

LIST = "/admin/catalog/registeredmodel/"
NO_DECISION = {"enabled": "on", "pinned": "unknown", "pool": "", "max_tokens": "", "budget": "", "max_items": ""}
VALID = """
id: org/small
family: fake
primitives: [encode]
outputs: [dense]
dims: {dense: 8}
"""


def change_page(row: RegisteredModel) -> str:
    return reverse("admin:catalog_registeredmodel_change", args=[row.pk])


def add(client: Client, document: str) -> str:
    """What the add page answers to a document, with entities read as a person sees them."""
    response = client.post(f"{LIST}add/", {**NO_DECISION, "entry": document}, follow=True)
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def act(client: Client, action: str, *rows: RegisteredModel) -> None:
    response = client.post(LIST, {"action": action, "_selected_action": [row.pk for row in rows]})
    assert response.status_code == 302


def test_a_model_is_added_by_its_document(admin_client: Client) -> None:
    add(admin_client, VALID)

    row = RegisteredModel.objects.get()
    assert (row.name, row.family, row.primitives, row.source) == ("org/small", "fake", ["encode"], "admin")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("id: [", "is not valid YAML"),
        ("just words", "expected a map of keys"),
        ("id: org/small\nfamily: fake", "primitives"),
        (VALID + "pined: true\n", "pinned"),  # the near miss is named
        (VALID + "max_tokens: many\n", "max_tokens"),
        (VALID + "max_tokens: 1\nmax_tokens: 2\n", "stands there twice"),
        ("", "required"),
    ],
)
def test_a_wrong_document_is_refused_at_its_field(admin_client: Client, document: str, problem: str) -> None:
    text = add(admin_client, document)

    assert problem in text
    assert not RegisteredModel.objects.exists()


def test_a_wrong_document_is_shown_again_as_it_was_typed(admin_client: Client) -> None:
    assert "pined: true  # a thought" in add(admin_client, VALID + "pined: true  # a thought\n")


def test_a_name_already_taken_is_refused(admin_client: Client) -> None:
    registered("org/small")

    assert "already names" in add(admin_client, VALID)


def test_decisions_about_a_file_entry_are_saved_and_its_document_is_not_touched(admin_client: Client) -> None:
    row = registered("org/filed")
    pool = Pool.objects.create(name="gpu")

    response = admin_client.post(
        change_page(row),
        {
            "entry": VALID,  # what a page cannot send, somebody else may
            "enabled": "",
            "pinned": "true",
            "pool": pool.pk,
            "max_tokens": "128",
            "budget": "4096",
            "max_items": "32",
        },
    )

    assert response.status_code == 302
    row.refresh_from_db()
    assert (row.enabled, row.pinned, row.pool, row.max_tokens) == (False, True, pool, 128)
    assert row.entry == entry("org/filed")


def test_a_page_saved_as_it_was_shown_changes_nothing(admin_client: Client) -> None:
    row = registered("org/filed", enabled=False, pinned=True, max_items=7)

    response = admin_client.post(change_page(row), {"pinned": "true", "max_items": "7"})

    assert response.status_code == 302
    row.refresh_from_db()
    assert (row.enabled, row.pinned, row.max_items, row.entry) == (False, True, 7, entry("org/filed"))


def test_a_file_entry_says_that_it_is_read_only(admin_client: Client) -> None:
    text = admin_client.get(change_page(registered("org/filed"))).content.decode()

    assert "comes from a catalog file and is read-only here" in text
    assert 'name="entry"' not in text


def test_a_stored_document_that_is_no_longer_valid_can_be_looked_at_and_is_complained_of(admin_client: Client) -> None:
    row = registered("org/old")
    RegisteredModel.objects.filter(pk=row.pk).update(entry={**row.entry, "gone": 1})

    response = admin_client.post(change_page(row), NO_DECISION)

    assert response.status_code == 200
    assert "gone" in response.content.decode()


def test_an_entry_added_here_is_edited_here(admin_client: Client) -> None:
    add(admin_client, VALID)
    row = RegisteredModel.objects.get()

    admin_client.post(change_page(row), {**NO_DECISION, "entry": VALID + "description: smaller still\n"})

    row.refresh_from_db()
    assert row.description == "smaller still"


@pytest.mark.parametrize(
    ("action", "field", "value"),
    [("enable", "enabled", True), ("disable", "enabled", False), ("pin", "pinned", True), ("unpin", "pinned", False)],
)
def test_actions_decide_for_all_chosen(admin_client: Client, action: str, field: str, value: Any) -> None:
    chosen = [registered("org/a", **{field: not value}), registered("org/b", **{field: not value})]
    other = registered("org/c", **{field: not value})

    act(admin_client, action, *chosen)

    rows = RegisteredModel.objects.values_list(field, flat=True)
    assert list(rows) == [value, value, not value]
    assert LogEntry.objects.filter(object_id__in=[row.pk for row in chosen]).count() == 2
    assert not LogEntry.objects.filter(object_id=other.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_decision_reaches_the_published_catalog(admin_client: Client, state: Any) -> None:
    row = registered("org/a")
    act(admin_client, "disable", row)

    assert Snapshot.from_json(state.get(names.CATALOG)).models == {}


@pytest.mark.parametrize("action", ["enable", "disable", "pin", "unpin"])
def test_actions_want_the_permission_to_change(client: Client, db: None, action: str) -> None:
    row = registered("org/a", enabled=True, pinned=None)
    viewer = User.objects.create_user("viewer", password="x", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_registeredmodel"))
    client.force_login(viewer)

    client.post(LIST, {"action": action, "_selected_action": [row.pk]})

    row.refresh_from_db()
    assert (row.enabled, row.pinned) == (True, None)


def test_a_model_whose_file_is_there_cannot_be_deleted(admin_client: Client) -> None:
    row = registered("org/filed")

    assert admin_client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_an_entry_added_here_can_be_deleted(admin_client: Client) -> None:
    add(admin_client, VALID)

    admin_client.post(f"{LIST}{RegisteredModel.objects.get().pk}/delete/", {"post": "yes"})

    assert not RegisteredModel.objects.exists()


def test_the_list_shows_what_the_fleet_has_loaded(admin_client: Client, beat: Beat) -> None:
    registered("org/hot")
    registered("org/cold")
    beat(models=[resident("org/hot", bytes=90 << 20)])

    text = admin_client.get(LIST).content.decode()

    assert "90 MiB" in text and "not loaded" in text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"state": "loaded"}, ["org/hot"]),
        ({"state": "not loaded"}, ["org/cold"]),
        ({"primitive": "encode"}, ["org/cold", "org/hot"]),
        ({"primitive": "generate"}, []),
        ({"enabled__exact": "0"}, ["org/cold"]),
        ({"q": "hot"}, ["org/hot"]),
    ],
)
def test_the_list_can_be_narrowed(admin_client: Client, beat: Beat, query: dict[str, str], found: list[str]) -> None:
    registered("org/hot")
    registered("org/cold", enabled=False)
    beat(models=[resident("org/hot")])

    response = admin_client.get(LIST, query)

    assert [row.name for row in response.context["cl"].result_list] == found


def test_a_lora_needs_one_place_to_come_from(admin_client: Client) -> None:
    base = registered("org/base")
    fields = {"name": "tuned", "base": base.pk, "enabled": "on", "repo": "org/weights", "folder": "/weights"}

    text = admin_client.post("/admin/catalog/lora/add/", fields).content.decode()

    assert "one of the two" in text
    assert not LoRA.objects.exists()


def test_a_lora_is_added(admin_client: Client) -> None:
    base = registered("org/base")

    admin_client.post("/admin/catalog/lora/add/", {"name": "tuned", "base": base.pk, "repo": "org/weights"})

    assert LoRA.objects.get().base == base


def test_a_pool_is_added(admin_client: Client) -> None:
    admin_client.post("/admin/catalog/pool/add/", {"name": "gpu-a", "description": "the fast ones"})

    assert Pool.objects.get().name == "gpu-a"


def test_a_pool_that_models_use_is_not_deleted(admin_client: Client) -> None:
    pool = Pool.objects.create(name="gpu")
    registered("org/a", pool=pool)

    admin_client.post(f"/admin/catalog/pool/{pool.pk}/delete/", {"post": "yes"})

    assert Pool.objects.exists()


def test_a_pool_shows_its_workers(admin_client: Client, beat: Beat) -> None:
    Pool.objects.create(name="gpu")
    beat("a", pool="gpu")
    beat("b", pool="gpu")
    beat("c", pool="other")

    response = admin_client.get("/admin/catalog/pool/")

    assert [row.workers_up for row in response.context["cl"].result_list] == [2]
