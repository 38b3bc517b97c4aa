"""Every registered admin, whatever it is: its pages open, escape, want a login and do not ask once per row."""

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from catalog.models import ApiKey, LoRA, Pool, RegisteredModel, Usage
from tests.admin.conftest import EVIL, api_key, registered

REGISTERED = {RegisteredModel, LoRA, Pool, ApiKey, Usage, User, Group}
EDITABLE = sorted(REGISTERED - {Usage}, key=lambda model: model.__name__)
LISTED = sorted(REGISTERED, key=lambda model: model.__name__)

pytestmark = pytest.mark.usefixtures("rows")


def url(model: type[models.Model], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def test_nothing_is_registered_that_these_tests_do_not_see() -> None:
    assert set(admin.site._registry) == REGISTERED


@pytest.mark.parametrize("model", LISTED)
def test_lists_open(admin_client: Client, model: type[models.Model]) -> None:
    assert admin_client.get(url(model, "changelist")).status_code == 200


@pytest.mark.parametrize("model", LISTED)
def test_lists_can_be_searched(admin_client: Client, model: type[models.Model]) -> None:
    assert admin_client.get(url(model, "changelist"), {"q": "1"}).status_code == 200


@pytest.mark.parametrize("model", EDITABLE)
def test_add_pages_open(admin_client: Client, model: type[models.Model]) -> None:
    assert admin_client.get(url(model, "add")).status_code == 200


@pytest.mark.parametrize("model", EDITABLE)
def test_change_pages_open(admin_client: Client, model: type[models.Model]) -> None:
    Group.objects.create(name="operators")
    row = model._default_manager.all()[0]

    assert admin_client.get(url(model, "change", row.pk)).status_code == 200


@pytest.mark.parametrize("model", LISTED)
def test_lists_want_a_login(client: Client, model: type[models.Model]) -> None:
    assert client.get(url(model, "changelist")).status_code == 302


@pytest.mark.parametrize("model", LISTED)
def test_lists_are_closed_to_staff_without_permission(client: Client, model: type[models.Model]) -> None:
    client.force_login(User.objects.create_user("clerk", password="x", is_staff=True))

    assert client.get(url(model, "changelist")).status_code == 403


def _more_rows() -> None:
    for number in range(3, 9):
        pool = Pool.objects.create(name=f"pool-{number}")
        model = registered(f"org/model-{number}", pool=pool)
        LoRA.objects.create(name=f"lora-{number}", base=model, repo="org/weights")
        api_key(f"prefix{number}")
        Usage.objects.create(key=f"prefix{number}", model=model.name, day="2026-02-01")
        User.objects.create_user(f"user-{number}")
        Group.objects.create(name=f"group-{number}")


@pytest.mark.parametrize("model", LISTED)
def test_a_longer_list_asks_no_more_queries(admin_client: Client, model: type[models.Model]) -> None:
    Group.objects.create(name="group-1")
    page = url(model, "changelist")
    admin_client.get(page)
    with CaptureQueriesContext(
        connection,
    ) as few:
        admin_client.get(page)
    _more_rows()

    with CaptureQueriesContext(connection) as many:
        admin_client.get(page)

    assert len(many) <= len(few), [query["sql"] for query in many.captured_queries]


@pytest.fixture
def evil(rows: None) -> dict[type[models.Model], object]:
    """A row of each kind as a database or an older version could hold it: no form would take these names."""
    model = RegisteredModel.objects.all()[0]
    RegisteredModel.objects.filter(pk=model.pk).update(
        name=EVIL,
        family=EVIL,
        bundle=EVIL,
        description=EVIL,
        aliases=[EVIL],
        primitives=[EVIL],
        pool=None,
        entry={**model.entry, "description": EVIL, "pool": EVIL},
    )
    key = api_key("evilkey", name=EVIL, allowed_models=[EVIL], primitives=[EVIL])
    return {
        RegisteredModel: model.pk,
        Pool: Pool.objects.create(name=EVIL, description=EVIL).pk,
        LoRA: LoRA.objects.create(name=EVIL, base=model, repo=EVIL, revision=EVIL, description=EVIL).pk,
        ApiKey: key.pk,
        Usage: Usage.objects.create(key=key.prefix, model=EVIL, day="2026-03-01").pk,
        User: User.objects.create_user(EVIL, first_name=EVIL, last_name=EVIL, email=EVIL).pk,
        Group: Group.objects.create(name=EVIL).pk,
    }


@pytest.mark.parametrize("model", LISTED)
def test_lists_escape_what_they_show(
    admin_client: Client, evil: dict[type[models.Model], object], model: type[models.Model]
) -> None:
    text = admin_client.get(url(model, "changelist")).content.decode()

    assert "&lt;img src=x" in text
    assert "<img src=x" not in text


@pytest.mark.parametrize("model", EDITABLE)
@pytest.mark.parametrize("page", ["change", "delete", "history"])
def test_pages_of_one_row_escape_what_they_show(
    admin_client: Client, evil: dict[type[models.Model], object], model: type[models.Model], page: str
) -> None:
    text = admin_client.get(url(model, page, evil[model])).content.decode()

    assert "<img src=x" not in text
