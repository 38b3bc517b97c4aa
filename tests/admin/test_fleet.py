"""What the fleet page says, from beats in a real Redis."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from pytest_django.fixtures import Settings

from admin import fleet
from admin.pages import fleet_live
from catalog.snapshot import Model, Snapshot
from inference.fleet import Fleet as GatewaysFleet
from inference.forecast import Forecast
from inference.published import Counts
from inference.queues import Queues, Waiting
from project.application import GATEWAY, Application
from protocol import clock, names
from protocol.spec import ModelSpec
from tests.admin.conftest import EVIL, GIB, Beat, resident

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def page(client: Client, path: str = "/admin/fleet/") -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_a_worker_is_shown_with_its_models_in_bytes(admin_client: Client, beat: Beat) -> None:
    beat("gpu-1", device="cuda:0", models=[resident(MINILM, bytes=90 << 20)])

    text = page(admin_client)

    assert "gpu-1" in text and "cuda:0" in text
    assert MINILM in text and "90 MiB" in text and "packed" in text
    assert "1.0 GiB of 4.0 GiB" in text


def test_a_model_that_waits_in_the_hosts_memory_is_shown_with_what_is_used_of_it(
    admin_client: Client, beat: Beat
) -> None:
    memory = {"capacity": 4 << 30, "used": 1 << 30, "host_capacity": 8 << 30, "host_used": 3 << 30}
    beat(memory=memory, models=[resident("org/away", state="parked", in_host=True, wake_s=0.02)])
    text = page(admin_client)
    assert "3.0 GiB of 8.0 GiB in the host" in text
    assert 'data-state="parked"' in text


def test_a_load_shows_how_far_it_is(admin_client: Client, beat: Beat) -> None:
    beat(models=[resident(MINILM, state="loading", progress=0.42)])

    text = page(admin_client)

    assert "42%" in text and 'value="0.420"' in text


def test_a_failed_model_shows_why(admin_client: Client, beat: Beat) -> None:
    beat(models=[resident(MINILM, state="failed", error={"code": "MODEL_LOAD_FAILED", "message": "no such file"})])

    assert "no such file" in page(admin_client)


def test_a_failed_load_says_when_it_is_tried_again(admin_client: Client, beat: Beat) -> None:
    beat(models=[resident(MINILM, state="failed", error={"message": "no such file"}, retry_in_s=95.0)])

    assert "It is not tried again for 1 min." in page(admin_client)


def test_a_budget_lowered_by_want_of_memory_is_shown(admin_client: Client, beat: Beat) -> None:
    beat(models=[resident(MINILM, ceiling=4321)])

    assert "batches are held to a cost of 4\u202f321" in page(admin_client)


@pytest.mark.parametrize(("ahead_s", "said"), [(300.5, "Clock: 5 min ahead"), (-7200.0, "Clock: 2 h behind")])
def test_a_clock_that_is_off_is_told_and_ages_are_right(
    admin_client: Client, beat: Beat, ahead_s: float, said: str
) -> None:
    beat(clock_ahead_s=ahead_s, started=time.time() + ahead_s - 7200)

    text = page(admin_client)

    assert said in text and "up 2 h" in text


def test_a_clock_that_is_right_is_not_mentioned(admin_client: Client, beat: Beat) -> None:
    beat(clock_ahead_s=0.0)

    assert "Clock:" not in page(admin_client)


@pytest.fixture
def ahead_here(state: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's own clock is five minutes ahead; what was learned is unlearned in the end."""
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 300)
    yield
    monkeypatch.undo()
    clock.learn((int(true_time()), 0), true_time(), true_time())


def test_ages_are_told_by_the_time_of_redis(admin_client: Client, beat: Beat, ahead_here: None) -> None:
    beat(started=time.time() - 300 - 59)

    assert "up 59 s" in page(admin_client) or "up 1 min" in page(admin_client)
    assert fleet.current().now == pytest.approx(time.time() - 300, abs=2)


class Seen:
    """What a gateway's reader last saw of its queues."""

    def __init__(self, read_at: float, queue: str) -> None:
        waiting = {queue: Waiting(Counts(5, 7, 1440), time.time() - 90)}
        self.current = Queues(waiting, {queue: Counts(1, 3, 60)}, read_at=read_at)

    def forecast(self, model: str, lane: str, now: float) -> Forecast | None:
        return Forecast(rate=10.0) if lane == "bulk" else None

    def ahead(self, spec: ModelSpec, lane: str, forecast: Forecast) -> float:
        return 1500.0


def of_gateway(read_at: float) -> dict[str, Any]:
    spec = ModelSpec(MINILM, "fake", ("encode",), outputs=("dense",), dims={"dense": 8})
    seen = Seen(read_at, names.queue("default", MINILM, "bulk"))
    catalog, fleet_seen = SimpleNamespace(current=Snapshot(1, (Model(spec),))), SimpleNamespace(current=GatewaysFleet())
    gateway = SimpleNamespace(catalog=catalog, fleet=fleet_seen, queues=seen)
    return {GATEWAY: gateway}


@pytest.fixture
def operator(db: None, rf: RequestFactory) -> Callable[[dict[str, Any]], str]:
    """What the live part says to somebody whose request came through a gateway."""
    ada = User.objects.create_superuser("ada")

    def read(scope: dict[str, Any]) -> str:
        request = rf.get("/admin/fleet/live/")
        request.user, request.scope = ada, scope  # type: ignore[attr-defined]  # as an ASGI request has it
        return fleet_live(request).content.decode()

    return read


def test_queues_are_told_as_the_gateway_knows_them(operator: Callable[[dict[str, Any]], str], beat: Beat) -> None:
    """Depth in items and cost, age and predicted wait, on whichever broker."""
    beat()

    text = operator(of_gateway(time.monotonic()))

    row = text[text.index("data-queue=") :]
    assert [cell for cell in (">6<", ">10<", ">1\u202f500<", ">1 min<", ">2 min<") if cell not in row] == []


def test_a_gateway_that_has_not_looked_lately_is_not_believed(
    operator: Callable[[dict[str, Any]], str], beat: Beat
) -> None:
    beat()

    assert "data-queue=" not in operator(of_gateway(time.monotonic() - 60))


def test_who_would_leave_first_is_shown(admin_client: Client, beat: Beat) -> None:
    beat(models=[resident("org/a"), resident("org/b")], leaving_order=["org/b", "org/a"])

    assert "first to leave: org/b, then org/a." in page(admin_client)


def test_models_that_push_each_other_out_are_named(admin_client: Client, beat: Beat) -> None:
    beat("quiet")
    assert "push each other" not in page(admin_client)

    beat("busy", thrashing=["org/a", EVIL])

    text = page(admin_client)
    assert "push each other off the device again and again: org/a, " in text
    assert EVIL not in text


def test_counters_and_waiting_work_are_shown(admin_client: Client, beat: Beat) -> None:
    beat(models=[resident(MINILM, waiting=17, waiting_cost=4321)], counters={"items": 345, "load_failures": 3})

    text = page(admin_client)

    assert "load failures" in text and ">3<" in text
    assert ">17<" in text and "4\u202f321" in text


def test_queues_at_the_broker_are_counted(admin_client: Client, beat: Beat, state: "redis.Redis") -> None:
    beat()
    queue = names.queue("default", "org/a.b", "bulk")
    state.zadd(names.DEMAND, {queue: time.time()})
    state.rpush(queue, *[b"message"] * 5)

    found = fleet.current()

    assert found.queues == (fleet.Queue("default", "org/a.b", "bulk", 5),)
    assert "org/a.b" in page(admin_client)


def test_what_workers_hold_is_added_to_what_waits_at_the_broker(
    admin_client: Client, beat: Beat, state: "redis.Redis"
) -> None:
    queue = names.queue("default", MINILM, "bulk")
    state.zadd(names.DEMAND, {queue: time.time()})
    state.rpush(queue, *[b"message"] * 5)
    beat("a", queues={queue: {"items": 3, "cost": 40}})
    beat("b", queues={queue: {"items": 4, "cost": 1400}})

    assert fleet.current().backlog == [fleet.Backlog("default", MINILM, "bulk", 5, 7, 1440)]
    assert "1\u202f440" in page(admin_client)


@pytest.mark.parametrize("odd", [b"\xff", b"[]", b'{"id":"odd","models":3}', b'{"id":{},"memory":3}'])
def test_a_beat_that_cannot_be_read_hides_no_other(
    admin_client: Client, beat: Beat, state: "redis.Redis", odd: bytes
) -> None:
    state.set(names.worker("odd"), odd)
    state.zadd(names.WORKERS, {"odd": time.time()})
    beat("gpu-1")

    assert "gpu-1" in page(admin_client)


def test_a_worker_that_stopped_beating_is_gone(beat: Beat, state: "redis.Redis") -> None:
    beat("dead")
    state.delete(names.worker("dead"))

    assert fleet.current().workers == ()


def test_no_worker_is_said_in_words(admin_client: Client, state: "redis.Redis") -> None:
    assert "No worker runs" in page(admin_client)


@pytest.mark.usefixtures("db")
def test_redis_being_away_is_said_in_words(admin_client: Client, settings: Settings) -> None:
    settings.SHOAL_REDIS_URL = settings.SHOAL_BROKER_URL = "redis://127.0.0.1:1/0"

    assert "Redis does not answer" in page(admin_client)
    assert "Redis does not answer" in page(admin_client, "/admin/")


def test_a_broker_that_is_no_redis_is_not_asked(admin_client: Client, beat: Beat, settings: Settings) -> None:
    beat(queues={names.queue("default", MINILM, "bulk"): {"items": 3, "cost": 40}})
    settings.SHOAL_BROKER_URL = "amqp://127.0.0.1:1//"

    assert "The broker is not a Redis" in page(admin_client)
    assert fleet.current().backlog == [fleet.Backlog("default", MINILM, "bulk", None, 3, 40)]


@pytest.mark.parametrize("path", ["/admin/fleet/", "/admin/fleet/live/", "/admin/live/"])
def test_fleet_pages_want_a_login(client: Client, db: None, path: str) -> None:
    response = client.get(path)

    assert response.status_code == 302
    assert response["Location"].startswith("/admin/login/")


@pytest.mark.parametrize("path", ["/admin/fleet/", "/admin/fleet/live/", "/admin/live/"])
def test_staff_without_permission_do_not_see_the_fleet(client: Client, db: None, path: str) -> None:
    client.force_login(User.objects.create_user("clerk", password="x", is_staff=True))

    assert client.get(path).status_code == 403


@pytest.mark.parametrize("path", ["/admin/fleet/", "/admin/fleet/live/", "/admin/", "/admin/live/"])
def test_names_in_beats_are_escaped(admin_client: Client, beat: Beat, state: "redis.Redis", path: str) -> None:
    queue = names.queue("default", EVIL, "bulk")
    state.zadd(names.DEMAND, {queue: time.time()})
    state.rpush(queue, b"message")
    beat(
        EVIL,
        pool=EVIL,
        device=EVIL,
        engines=[{"bundle": EVIL, "pid": 1, "state": EVIL}],
        models=[resident(EVIL, state=EVIL, error={"message": EVIL}), resident(EVIL, state="loading", stage=EVIL)],
        counters={EVIL: 1},
    )

    assert "<img src=x" not in page(admin_client, path)


def test_the_live_part_is_the_page_without_its_frame(admin_client: Client, beat: Beat) -> None:
    beat(models=[resident(MINILM)])

    response = admin_client.get("/admin/fleet/live/")

    assert MINILM in response.content.decode() and "<html" not in response.content.decode()
    assert "no-store" in response["Cache-Control"]


def test_the_best_state_of_a_model_counts(beat: Beat) -> None:
    beat("a", models=[resident(MINILM, state="failed")])
    beat("b", models=[resident(MINILM, state="loaded", bytes=GIB)])

    found = fleet.current()

    assert found.states() == {MINILM: "loaded"}
    assert found.loaded == {MINILM}
    assert found.held()[MINILM] == GIB


async def test_the_pages_find_the_gateway_of_their_process() -> None:
    app, scopes = Application(), []

    async def stock(scope: dict[str, Any], receive: Any, send: Any) -> None:
        scopes.append(scope)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    gateway = SimpleNamespace()
    app.stock, app.lean.gateway = stock, gateway  # type: ignore[assignment]  # stand-ins
    await app({"type": "http", "path": "/admin/fleet/", "headers": []}, receive, receive)  # type: ignore[arg-type]

    assert scopes[0][GATEWAY] is gateway
