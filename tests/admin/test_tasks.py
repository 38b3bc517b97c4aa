"""Tasks in the admin, as gateways and workers leave them in a real Redis."""

import time
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django.fixtures import Settings

from protocol import names
from protocol.messages import Request
from protocol.replies import Reply
from tests.admin.conftest import EVIL
from workers import results

SECRET = "what the caller got"


def accept(server: "redis.Redis", task_id: str, **facts: Any) -> None:
    """As a gateway remembers a task."""
    now = time.time()
    known: dict[Any, Any] = {
        "model": "org/model",
        "lane": "bulk",
        "pool": "default",
        "created": now,
        "deadline": now + 60,
        "key": "p1",
    }
    server.hset(names.task(task_id), mapping=known | facts)
    server.zadd(names.TASKS, {task_id: now})


def finish(state: "redis.Redis", task_id: str, **reply: Any) -> None:
    """As a worker stores a result."""
    request = Request(task_id, "encode", "org/model", "d", 1, 1, deadline=0, published=0, store=True)
    state.set(names.task_result(task_id), results.stored_form(request, Reply(task_id, **reply), None))


def page(client: Client, **query: str) -> str:
    response = client.get("/admin/tasks/", query)
    assert response.status_code == 200
    return response.content.decode()


@pytest.fixture
def several(state: "redis.Redis") -> None:
    accept(state, "task-queued")
    accept(state, "task-running", state="running", started=time.time())
    accept(state, "task-late", deadline=time.time() - 1)
    accept(state, "task-done")
    finish(state, "task-done", results=[{"dense": {"dims": 1, "dtype": "float32", "values": [1.0]}, "note": SECRET}])
    accept(state, "task-failed")
    finish(state, "task-failed", error={"code": "INFERENCE_ERROR", "message": SECRET})
    state.zadd(names.TASKS, {"task-forgotten": time.time()})


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("state_wanted", "task"),
    [
        ("queued", "task-queued"),
        ("running", "task-running"),
        ("expired", "task-late"),
        ("succeeded", "task-done"),
        ("failed", "task-failed"),
    ],
)
def test_tasks_are_listed_by_state(admin_client: Client, state_wanted: str, task: str) -> None:
    text = page(admin_client, state=state_wanted)

    assert text.count("data-task=") == 1
    assert f'data-task="{task}"' in text


@pytest.mark.usefixtures("several")
def test_all_are_listed_without_what_callers_sent_or_got(admin_client: Client) -> None:
    text = page(admin_client)

    assert text.count("data-task=") == 5
    assert "INFERENCE_ERROR" in text and "task-forgotten" not in text
    assert SECRET not in text


@pytest.mark.usefixtures("several")
def test_a_task_is_cancelled_for_its_caller(admin_client: Client, state: "redis.Redis") -> None:
    text = admin_client.post("/admin/tasks/cancel/", {"id": "task-queued"}, follow=True).content.decode()

    assert "1 task cancelled." in text
    assert 'data-task="task-queued"' in page(admin_client, state="cancelled")
    assert state.zscore(names.CANCELLED, "task-queued") is not None


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(("task", "said"), [("task-done", "has succeeded already"), ("nobody", "there is no task")])
def test_what_has_ended_is_not_cancelled(admin_client: Client, task: str, said: str) -> None:
    assert said in admin_client.post("/admin/tasks/cancel/", {"id": task}, follow=True).content.decode()


@pytest.mark.usefixtures("several", "db")
def test_who_may_only_look_cannot_cancel() -> None:
    user = User.objects.create_user("clerk", password="x", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get("/admin/tasks/").status_code == 403
    user.user_permissions.set(Permission.objects.filter(codename="view_registeredmodel"))

    assert '<button class="console-link"' not in page(client)
    assert client.post("/admin/tasks/cancel/", {"id": "task-queued"}).status_code == 403


def test_names_are_escaped(admin_client: Client, state: "redis.Redis") -> None:
    accept(state, EVIL, model=EVIL, key=EVIL, lane=EVIL, state=EVIL)

    assert "<img src=x" not in page(admin_client)
    assert "<img src=x" not in page(admin_client, state=EVIL)


def test_redis_being_away_is_said_in_words(admin_client: Client, settings: Settings) -> None:
    settings.SHOAL_REDIS_URL = "redis://127.0.0.1:1/0"

    assert "Redis does not answer" in page(admin_client)
