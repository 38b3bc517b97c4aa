"""Celery's own tools see a device worker like any other, and no customer's text."""

import threading
import time
from typing import Any

import pytest
from celery import Celery

from tests.service.harness import Fleet, Gateway, Services, fake_model, plain_client, wait_until

SECRET = "the patient's name"
SLOW = fake_model("fake/slow", forward_s=4.0, max_items=1)


@pytest.fixture
def tools(services: Services) -> Celery:
    app = plain_client(services)
    app.conf.accept_content = ["json"]
    return app


def _send(app: Celery, awaited: bool = True) -> Any:
    """A result nobody reads must not be subscribed to, or Celery complains when Redis has gone at the end."""
    arguments = {"model": "fake/slow", "items": [{"text": SECRET}]}
    return app.send_task("shoal.encode", kwargs=arguments, queue="shoal", ignore_result=not awaited)


def test_inspect_shows_what_runs_and_what_waits(fleet: Fleet, gateway: Gateway, tools: Celery) -> None:
    gateway.serve(SLOW)
    fleet.start()
    sent = {_send(tools, awaited=False).id for _ in range(2)}
    inspect = tools.control.inspect(timeout=0.5)
    active = wait_until(lambda: _only(inspect.active()), what="an active task")
    reserved = wait_until(lambda: _only(inspect.reserved()), what="a reserved task")
    assert {task["id"] for task in active + reserved} == sent
    assert active[0]["args"] == "('fake/slow', 1 items)"
    assert SECRET not in str(active + reserved)


def test_inspect_stats_show_the_device(fleet: Fleet, gateway: Gateway, tools: Celery) -> None:
    gateway.serve(SLOW)
    worker = fleet.start()
    wait_until(lambda: gateway.beat(worker), what="a beat")
    stats = wait_until(lambda: _only(tools.control.inspect(timeout=0.5).stats()), what="an answer")
    assert stats["pool"]["device"]["id"] == worker.id


def test_revoke_drops_what_has_not_started(fleet: Fleet, gateway: Gateway, tools: Celery) -> None:
    gateway.serve(SLOW)
    worker = fleet.start()
    _send(tools, awaited=False)
    waiting = _send(tools)
    wait_until(lambda: sum(held["items"] for held in gateway.beat(worker).get("queues", {}).values()) == 2)
    tools.control.revoke(waiting.id)
    with pytest.raises(Exception, match="revoked"):
        waiting.get(timeout=10)
    wait_until(lambda: gateway.beat(worker).get("queues") == {}, what="nothing held")


def test_events_tell_each_tasks_story_without_its_text(fleet: Fleet, gateway: Gateway, tools: Celery) -> None:
    gateway.serve(fake_model("fake/slow"))
    fleet.start()
    seen: list[dict[str, Any]] = []
    with tools.connection() as connection:
        receiver = tools.events.Receiver(connection, handlers={"*": seen.append})
        listening = threading.Thread(target=lambda: _listen(receiver), daemon=True)
        listening.start()
        time.sleep(0.5)
        tools.control.enable_events()
        time.sleep(0.5)
        good = _send(tools)
        bad = tools.send_task("shoal.encode", kwargs={"model": "?"}, queue="shoal", ignore_result=True)
        good.get(timeout=10)
        kinds = {"task-received", "task-started", "task-succeeded"}
        wait_until(lambda: kinds <= {event["type"] for event in seen if event.get("uuid") == good.id}, what="events")
        wait_until(lambda: "task-failed" in {event["type"] for event in seen if event.get("uuid") == bad.id})
        receiver.should_stop = True
        listening.join()
    assert SECRET not in str(seen)
    received = next(event for event in seen if event["type"] == "task-received" and event["uuid"] == good.id)
    assert received["args"].endswith("items)")


def _only(answers: dict[str, Any] | None) -> Any:
    """The answer of the one worker there is, if it came in time."""
    return next(iter(answers.values())) if answers else None


def _listen(receiver: Any) -> None:
    receiver.capture(limit=None, timeout=20, wakeup=False)
