"""The management API: administrators only, strict, and in the one error envelope."""

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from catalog import issuing, keys
from catalog.issuing import read_keys
from catalog.models import ApiKey, Pool, RegisteredModel
from tests.catalog.conftest import document

pytestmark = pytest.mark.django_db


def key(**fields: Any) -> str:
    row = ApiKey(name="test", **fields)
    text = issuing.issue(row)
    row.save()
    return text


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
def api() -> Client:
    """A client with an administrator's key."""
    return Client(headers=bearer(key(is_admin=True)))


@pytest.fixture
def model() -> RegisteredModel:
    row = RegisteredModel(source=RegisteredModel.Source.FILE)
    row.set_entry(document(budget=4096, max_tokens=512))
    row.save()
    return row


def patch(client: Client, path: str, body: Any) -> Any:
    return client.patch(path, body, content_type="application/json")


def post(client: Client, path: str, body: Any) -> Any:
    return client.post(path, body, content_type="application/json")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 15_000 + b"]" * 15_000,
        b'{"entry":' * 15_000 + b"1" + b"}" * 15_000,
        b'{"name": 1e999}',
        b'{"name": NaN}',
        b'{"name": "\\ud800"}',
        b'{"name": ' + b"9" * 5000 + b"}",
        b"\xff",
    ],
    ids=["lists", "maps", "too large", "no number", "half a pair", "digits", "latin-1"],
)
@pytest.mark.parametrize("path", ["/api/models/", "/api/keys/"])
def test_a_body_that_is_no_strict_json_is_400(api: Client, path: str, body: bytes) -> None:
    """S030, S035, S036: in the management API too."""
    answer = api.post(path, body, content_type="application/json")

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_INPUT")


PATHS = ["/api/models/", "/api/models/org/model/", "/api/keys/"]


@pytest.mark.parametrize("path", PATHS)
def test_nobody_gets_in_without_a_key(client: Client, path: str) -> None:
    answer = client.get(path)

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "UNAUTHORIZED"


@pytest.mark.parametrize("path", PATHS)
def test_an_ordinary_key_is_not_enough(client: Client, path: str) -> None:
    answer = client.get(path, headers=bearer(key()))

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")


def test_a_wrong_key_is_refused(client: Client) -> None:
    answer = client.get("/api/models/", headers=bearer(key(is_admin=True) + "x"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize("field", ["revoked", "expires"])
def test_a_revoked_or_expired_admin_key_is_refused(client: Client, field: str) -> None:
    text = key(is_admin=True, **{field: timezone.now()})

    assert client.get("/api/models/", headers=bearer(text)).status_code == 401


def test_staff_may_use_their_session(client: Client) -> None:
    client.force_login(get_user_model().objects.create_user("clerk", is_staff=True))

    assert client.get("/api/models/").status_code == 200


def test_a_session_without_staff_rights_is_not_enough(client: Client) -> None:
    client.force_login(get_user_model().objects.create_user("guest"))

    assert client.get("/api/models/").status_code == 403


def test_a_session_changes_nothing_without_its_token(model: RegisteredModel) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(get_user_model().objects.create_user("clerk", is_staff=True))

    assert patch(browser, "/api/models/org/model/", {"enabled": False}).status_code == 403
    model.refresh_from_db()
    assert model.enabled


def test_models_are_shown_as_decided_and_as_effective(api: Client, model: RegisteredModel) -> None:
    RegisteredModel.objects.update(budget=7)

    [shown] = api.get("/api/models/").json()

    assert shown == api.get("/api/models/org/model/").json()
    assert (shown["id"], shown["origin"], shown["served"]) == ("org/model", "file", True)
    assert (shown["budget"], shown["max_tokens"], shown["pool"]) == (7, None, None)
    effective = shown["effective"]
    assert (effective["budget"], effective["max_tokens"], effective["pool"]) == (7, 512, "default")
    assert shown["entry"] == model.entry


def test_listing_does_not_ask_once_per_model(api: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(5):
        row = RegisteredModel(pool=Pool.objects.create(name=f"pool-{number}"))
        row.set_entry(document(f"org/model-{number}"))
        row.save()

    with django_assert_num_queries(2):  # the keys, the models
        api.get("/api/models/")


def test_an_unknown_model_is_404(api: Client) -> None:
    answer = api.get("/api/models/org/none/")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "MODEL_NOT_FOUND")


def test_decisions_are_taken_and_taken_back(api: Client, model: RegisteredModel) -> None:
    Pool.objects.create(name="gpu")
    decided = {"enabled": False, "pinned": True, "pool": "gpu", "max_tokens": 128, "budget": 7, "max_items": 3}

    answer = patch(api, "/api/models/org/model/", decided)
    assert answer.status_code == 200
    assert {name: answer.json()[name] for name in decided} == decided

    answer = patch(api, "/api/models/org/model/", {"budget": None, "pool": None})
    assert (answer.json()["budget"], answer.json()["effective"]["budget"]) == (None, 4096)
    assert answer.json()["effective"]["pool"] == "default"
    assert answer.json()["max_items"] == 3


WRONG = [
    ({"enable": False}, "enable", "unknown key 'enable'; did you mean 'enabled'?"),
    ({"budget": 0}, "budget", "greater than or equal to 1"),
    ({"budget": "much"}, "budget", "valid integer"),
    ({"pool": "none"}, "pool", "does not exist"),
    ({"enabled": None}, "enabled", "may not be null"),
    ({"max_tokens": 513}, "max_tokens", "The model reads 512 tokens at most."),
    (["enabled"], None, "Invalid data"),
]


@pytest.mark.parametrize(("body", "param", "expected"), WRONG)
def test_wrong_decisions_name_the_field(
    api: Client, model: RegisteredModel, body: Any, param: str | None, expected: str
) -> None:
    answer = patch(api, "/api/models/org/model/", body)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error.get("param")) == ("INVALID_INPUT", param)
    assert expected in error["message"]


def test_a_body_that_is_not_json_is_400(api: Client, model: RegisteredModel) -> None:
    answer = patch(api, "/api/models/org/model/", "{")

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_INPUT")


def test_a_method_that_is_not_offered_is_405(api: Client) -> None:
    answer = api.delete("/api/models/")

    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize("path", PATHS)
def test_the_last_slash_may_be_left_out(api: Client, model: RegisteredModel, path: str) -> None:
    assert api.get(path.rstrip("/")).json() == api.get(path).json()


def test_a_model_is_added_from_an_entry(api: Client) -> None:
    answer = post(api, "/api/models/", document("org/new", aliases=["new"]))

    assert answer.status_code == 201
    assert (answer.json()["id"], answer.json()["origin"]) == ("org/new", "admin")
    assert RegisteredModel.objects.get().aliases == ["new"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (document("org/new", famly="x"), "unknown key 'famly'; did you mean 'family'?"),
        (document("org/model"), "'org/model' already names org/model."),
        ({}, "cannot be blank"),
        ([document()], "expected a map, got a list"),
    ],
)
def test_a_wrong_entry_is_not_added(api: Client, model: RegisteredModel, body: Any, expected: str) -> None:
    answer = post(api, "/api/models/", body)

    assert answer.status_code == 400
    assert expected in answer.json()["error"]["message"]
    assert RegisteredModel.objects.get() == model


def test_a_key_is_made_and_shown_once(api: Client, model: RegisteredModel) -> None:
    wanted = {"name": "job", "allowed_models": ["org/model"], "primitives": ["score", "encode"], "lane": "bulk"}

    answer = post(api, "/api/keys/", wanted)

    assert answer.status_code == 201
    assert answer["Cache-Control"] == "no-store"
    text = answer.json()["key"]
    record = keys.authenticate(read_keys(), text, timezone.now().timestamp())
    assert (record.name, record.lane, record.is_admin) == ("job", "bulk", False)
    assert record.models == {"org/model"}
    assert record.primitives == {"encode", "score"}
    listed = api.get("/api/keys/").content.decode()
    assert record.prefix in listed
    assert text.rpartition(record.prefix)[2] not in listed
    assert record.digest not in listed


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "job", "primitives": ["embed"]}, "primitives"),
        ({"name": "job", "allowed_models": ["org/modle"]}, "allowed_models"),
        ({"name": "job", "lane": "fast"}, "lane"),
        ({"name": "job", "admin": True}, "admin"),
    ],
)
def test_a_wrong_key_is_not_made(api: Client, model: RegisteredModel, body: Any, param: str) -> None:
    answer = post(api, "/api/keys/", body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert ApiKey.objects.count() == 1  # the caller's own


def test_a_key_is_revoked(api: Client) -> None:
    text = key()
    prefix = text.split("-")[2]

    assert api.delete(f"/api/keys/{prefix}/").status_code == 204

    assert read_keys().find(prefix) is None


def test_revoking_an_unknown_key_says_so(api: Client) -> None:
    answer = api.delete("/api/keys/none/")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")


def test_the_schema_of_the_api_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn")

    schema = capsys.readouterr().out
    assert "/api/models/{name}/:" in schema
    assert "apiKey:" in schema
