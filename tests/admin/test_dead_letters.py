"""Dead letters in the admin and on the command line, with a real Redis behind."""

import time
from io import StringIO

import msgpack
import pytest
import redis
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django.fixtures import Settings

from catalog.snapshot import Model, Snapshot
from protocol import dead_letters, names
from protocol.dead_letters import DeadLetter
from protocol.messages import EMBED
from protocol.spec import ModelSpec
from tests.admin.conftest import EVIL, Beat

SECRET = "what the caller wrote"
MODEL = ModelSpec("org/model", "fake", ("encode",), outputs=("dense",), dims={"dense": 8})


def bury(state: "redis.Redis", letter_id: str, *, message: bytes | None = None, **fields: object) -> None:
    now = time.time()
    facts = {
        "primitive": "encode",
        "model": MODEL.model,
        "lane": "bulk",
        "key": "prefix1",
        "count": 1,
        "cost": 7,
        "published": now,
        "died": now,
        "attempts": 3,
        "code": "WORKER_LOST",
        "message": "the request was started 3 times",
        "worker": "gpu-1",
        "queue": names.queue("default", MODEL.model, "bulk"),
        **fields,
    }
    body = msgpack.packb([[], {"model": MODEL.model, "items": [{"text": SECRET}], "options": {}}, EMBED])
    letter = DeadLetter(id=letter_id, **facts)  # type: ignore[arg-type]  # a map of all its fields
    state.eval(dead_letters.KEEP, *dead_letters.keep_arguments(letter, body if message is None else message))


@pytest.fixture
def served(state: "redis.Redis") -> None:
    state.set(names.CATALOG, Snapshot(1, (Model(MODEL),)).to_json())


def page(client: Client, name: str = "dead-letters", *args: str, **query: str) -> str:
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, action: str, *ids: str) -> str:
    response = client.post(reverse("dead-letters-act"), {"action": action, "id": ids}, follow=True)
    return response.content.decode()


def clerk(*permissions: str) -> Client:
    user = User.objects.create_user("clerk", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def test_a_letter_is_listed_with_what_is_known_and_nothing_the_caller_sent(
    admin_client: Client, state: "redis.Redis"
) -> None:
    bury(state, "letter-1")

    for text in (page(admin_client), page(admin_client, "dead-letter", "letter-1")):
        assert all(word in text for word in ("letter-1", MODEL.model, "bulk", "prefix1", "WORKER_LOST", "gpu-1"))
        assert SECRET not in text


def test_what_the_caller_sent_is_shown_on_demand_and_that_is_logged(
    admin_client: Client, state: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    bury(state, "letter-1")

    assert SECRET in page(admin_client, "dead-letter", "letter-1", payload="1")

    assert "payload of a dead letter shown" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.usefixtures("db", "state")
def test_who_may_only_look_sees_no_payload_and_no_buttons(state: "redis.Redis") -> None:
    bury(state, "letter-1")
    client = clerk("view_registeredmodel")

    assert SECRET not in page(client, "dead-letter", "letter-1", payload="1")
    assert "<button name" not in page(client)
    assert client.post(reverse("dead-letters-act"), {"action": "drop", "id": "letter-1"}).status_code == 403
    assert state.zcard(names.DEAD) == 1


@pytest.mark.parametrize("path", ["/admin/dead-letters/", "/admin/dead-letters/letter-1/"])
def test_the_pages_are_closed_to_others(client: Client, db: None, state: "redis.Redis", path: str) -> None:
    bury(state, "letter-1")

    assert client.get(path).status_code == 302
    assert clerk().get(path).status_code == 403


def test_an_action_wants_a_token_against_forgery(db: None, state: "redis.Redis") -> None:
    bury(state, "letter-1")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("ada"))

    assert client.post(reverse("dead-letters-act"), {"action": "drop", "id": "letter-1"}).status_code == 403
    assert state.zcard(names.DEAD) == 1


def test_names_are_escaped(admin_client: Client, state: "redis.Redis") -> None:
    """S092: a message that cannot be read says what it likes of its model."""
    bury(state, EVIL, model=EVIL, worker=EVIL, queue=EVIL, key=EVIL, lane=EVIL, code=EVIL)

    assert "<img src=x" not in page(admin_client)
    assert "<img src=x" not in page(admin_client, "dead-letter", EVIL)


@pytest.mark.usefixtures("served")
def test_several_are_sent_again_at_once(admin_client: Client, state: "redis.Redis") -> None:
    bury(state, "letter-1")
    bury(state, "letter-2")
    bury(state, "unread", message=b"")

    text = act(admin_client, "replay", "letter-1", "letter-2", "unread", "unknown")

    assert "2 dead letters sent again" in text
    assert "unread: its message was not kept" in text and "unknown: it is no dead letter" in text
    assert state.llen(names.queue("default", MODEL.model, "bulk")) == 2
    assert state.zrange(names.DEAD, 0, -1) == [b"unread"]


@pytest.mark.usefixtures("state")
def test_a_model_that_is_gone_is_said(admin_client: Client, state: "redis.Redis") -> None:
    bury(state, "letter-1")

    assert "the catalog has no model" in act(admin_client, "replay", "letter-1")
    assert state.zcard(names.DEAD) == 1


def test_some_are_dropped(admin_client: Client, state: "redis.Redis") -> None:
    bury(state, "letter-1")
    bury(state, "letter-2")

    assert "1 dead letter dropped" in act(admin_client, "drop", "letter-1")
    assert state.zrange(names.DEAD, 0, -1) == [b"letter-2"]
    assert state.hkeys(names.DEAD_MESSAGES) == [b"letter-2"]


def test_the_fleet_page_warns_while_there_are_any(admin_client: Client, beat: Beat, state: "redis.Redis") -> None:
    beat()
    assert "dead letter" not in admin_client.get("/admin/fleet/live/").content.decode()

    bury(state, "letter-1")

    assert "1 dead letter" in admin_client.get("/admin/fleet/live/").content.decode()


def test_redis_being_away_is_said_in_words(admin_client: Client, settings: Settings) -> None:
    settings.SHOAL_REDIS_URL = "redis://127.0.0.1:1/0"

    assert "Redis does not answer" in page(admin_client)
    assert "Redis does not answer" in act(admin_client, "drop", "letter-1")


def test_a_longer_list_asks_no_more_queries(admin_client: Client, state: "redis.Redis") -> None:
    bury(state, "letter-1")
    page(admin_client)
    with CaptureQueriesContext(connection) as few:
        page(admin_client)
    for number in range(30):
        bury(state, f"more-{number}")

    with CaptureQueriesContext(connection) as many:
        page(admin_client)

    assert len(many) == len(few)


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("dead_letters", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("served")
def test_the_command_lists_replays_and_drops(state: "redis.Redis") -> None:
    bury(state, "letter-1")
    bury(state, "letter-2")
    bury(state, "unread", message=b"")

    listed = command("list")
    assert "letter-1" in listed and "WORKER_LOST" in listed and "unread" in listed and SECRET not in listed
    assert "letter-1  sent again" in command("replay", "letter-1", "unread")
    assert command("drop", "--all") == "2 dropped\n"
    assert command("list") == ""


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("arguments", [("drop",), ("replay", "unknown")])
def test_the_command_fails_when_it_did_nothing(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        command(*arguments)
