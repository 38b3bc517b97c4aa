"""API keys in the admin: the secret is seen once, the hash never, and a revoked key stays in the list."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from catalog import keys
from catalog.issuing import read_keys
from catalog.models import ApiKey, Usage
from tests.admin.conftest import api_key, registered

LIST = "/admin/catalog/apikey/"
FORM = {"name": "search service", "lane": "interactive"}


def create(client: Client) -> str:
    """The page that answers the add form."""
    response = client.post(f"{LIST}add/", FORM)
    assert response.status_code == 200
    return response.content.decode()


def secret_in(page: str) -> str:
    found = re.search(r"<code data-secret>([^<]+)</code>", page)
    assert found
    return found[1]


def test_a_new_key_is_shown_and_works(admin_client: Client) -> None:
    secret = secret_in(create(admin_client))

    assert keys.authenticate(read_keys(), secret, now=0).name == "search service"


def test_the_page_with_the_secret_is_not_kept_by_browsers(admin_client: Client) -> None:
    assert "no-store" in admin_client.post(f"{LIST}add/", FORM)["Cache-Control"]


def test_the_secret_is_on_no_later_page(admin_client: Client) -> None:
    secret = secret_in(create(admin_client))
    row = ApiKey.objects.get()

    listed = admin_client.get(LIST).content.decode()
    changed = admin_client.get(f"{LIST}{row.pk}/change/").content.decode()

    assert secret.rpartition("-")[2] not in listed + changed
    assert row.prefix in listed and row.prefix in changed


def test_the_hash_is_on_no_page(admin_client: Client) -> None:
    row = api_key("abcd", digest="f" * 64)

    pages = [admin_client.get(path).content.decode() for path in (LIST, f"{LIST}{row.pk}/change/")]

    assert "f" * 64 not in "".join(pages)


def test_revoking_from_the_list_ends_the_key(admin_client: Client) -> None:
    secret = secret_in(create(admin_client))
    row = ApiKey.objects.get()

    admin_client.post(LIST, {"action": "revoke", "_selected_action": [row.pk]})

    assert len(read_keys()) == 0
    row.refresh_from_db()
    assert row.state(timezone.now()) == "revoked"
    assert secret not in admin_client.get(LIST).content.decode()


def test_revoking_on_the_keys_own_page_ends_it(admin_client: Client) -> None:
    row = api_key("abcd")

    admin_client.post(f"{LIST}{row.pk}/change/", {**FORM, "catalog_apikey_revoke_this": "1"})

    assert len(read_keys()) == 0


def test_revoking_twice_keeps_the_first_moment(admin_client: Client) -> None:
    revoked = timezone.now() - timedelta(days=3)
    row = api_key("abcd", revoked=revoked)

    admin_client.post(LIST, {"action": "revoke", "_selected_action": [row.pk]})

    row.refresh_from_db()
    assert row.revoked == revoked


def test_keys_are_not_deleted(admin_client: Client) -> None:
    row = api_key("abcd")

    assert admin_client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_what_a_key_permits_is_chosen(admin_client: Client) -> None:
    registered("org/a")

    admin_client.post(f"{LIST}add/", {**FORM, "primitives": ["encode", "score"], "allowed_models": ["org/a"]})

    row = ApiKey.objects.get()
    assert (row.primitives, row.allowed_models) == (["encode", "score"], ["org/a"])


@pytest.mark.parametrize("wrong", [{"primitives": ["dance"]}, {"allowed_models": ["org/nowhere"]}])
def test_what_there_is_not_cannot_be_permitted(admin_client: Client, wrong: dict[str, list[str]]) -> None:
    page = admin_client.post(f"{LIST}add/", {**FORM, **wrong}).content.decode()

    assert "is not one of the available choices" in page
    assert not ApiKey.objects.exists()


def test_a_model_that_is_gone_stays_permitted_until_somebody_decides(admin_client: Client) -> None:
    row = api_key("abcd", allowed_models=["org/gone"])

    admin_client.post(f"{LIST}{row.pk}/change/", {**FORM, "allowed_models": ["org/gone"]})

    row.refresh_from_db()
    assert (row.name, row.allowed_models) == ("search service", ["org/gone"])


def test_usage_shows_the_keys_name(admin_client: Client) -> None:
    api_key("abcd", name="search service")
    Usage.objects.create(key="abcd", model="org/a", day="2026-01-01", items=3, tokens=40)

    assert "search service (abcd)" in admin_client.get("/admin/catalog/usage/").content.decode()


def test_usage_cannot_be_edited(admin_client: Client) -> None:
    row = Usage.objects.create(key="abcd", model="org/a", day="2026-01-01")

    assert admin_client.get("/admin/catalog/usage/add/").status_code == 403
    assert admin_client.post(f"/admin/catalog/usage/{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_a_user_is_added_with_a_password_that_works(admin_client: Client, client: Client) -> None:
    password = "correct horse battery"
    admin_client.post(
        reverse("admin:auth_user_add"),
        {"username": "ada", "usable_password": "true", "password1": password, "password2": password},
    )

    assert User.objects.get(username="ada").check_password(password)
