"""Broker and Redis that die, come back, hang or forget: every call ends soon, in its reply or an error to retry on."""

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from inference import lean
from inference.gateway import Gateway
from inference.lean import LeanHandler
from project.cli import embedded, processes
from tests.gateway.conftest import FAKE, Setup, limits, until
from tests.gateway.double import WorkerDouble, encode, silent

PATH = "/v1/encode/acme/fake"
BODY: dict[str, Any] = {"items": ["a"]}


class Server:
    """A Valkey that can be killed and started again on its port, with or without what it knew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = embedded.plan(folder, embedded.from_wheel())
        self.url = self._plan.url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = processes.spawn(self._plan.command, output=subprocess.DEVNULL)
        embedded.wait_until_ready(self.url, self._process)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            processes.end(self._process, grace=5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(server: Server) -> str:
    """All of the gateway on a server of its own, which the test may kill."""
    return server.url


async def test_restart_fails_waiting_calls_at_once(client: httpx.AsyncClient, app: LeanHandler, server: Server) -> None:
    assert app.gateway is not None
    calls = [asyncio.create_task(client.post(PATH, json=BODY)) for _ in range(20)]
    await until(lambda: app.gateway is not None and len(app.gateway.mailbox) == 20)
    await asyncio.sleep(0.1)
    server.kill()
    server.start()
    started = time.perf_counter()
    responses = await asyncio.gather(*calls)
    assert time.perf_counter() - started < 2
    assert {response.status_code for response in responses} == {503}
    assert {response.json()["error"]["code"] for response in responses} == {"transport_failure"}
    assert all(float(response.headers["retry-after"]) > 0 for response in responses)
    assert len(app.gateway.mailbox) == 0


async def test_calls_go_on_after_a_restart(client: httpx.AsyncClient, app: LeanHandler, server: Server) -> None:
    gateway = _gateway(app)
    server.kill()
    await until(lambda: not gateway.mailbox.connected)
    server.start()
    await until(lambda: gateway.mailbox.connected and gateway.publisher.connected)
    double = WorkerDouble(server.url, Path("unused"), models=(FAKE,)).start()
    assert (await client.post(PATH, json=BODY)).status_code == 200
    double.stop()


async def test_dead_broker_refuses_within_a_second(client: httpx.AsyncClient, app: LeanHandler, server: Server) -> None:
    server.kill()
    for _ in range(50):
        started = time.perf_counter()
        response = await client.post(PATH, json=BODY)
        assert time.perf_counter() - started < 1.0
        assert response.status_code == 503
        assert response.json()["error"]["code"] in ("QUEUE_UNAVAILABLE", "transport_failure")
        assert "retry-after" in response.headers


async def test_readiness_follows_redis(
    worker: WorkerDouble, client: httpx.AsyncClient, app: LeanHandler, server: Server
) -> None:
    gateway = _gateway(app)
    await until(lambda: gateway.fleet.current.beats)
    assert (await client.get("/readyz")).status_code == 200
    worker.is_beating = False
    worker.stop()
    server.kill()
    await until(lambda: not gateway.mailbox.connected and not gateway.publisher.connected)
    response = await client.get("/readyz")
    assert response.status_code == 503
    assert {reason["code"] for reason in response.json()["reasons"]} >= {"redis_unreachable", "broker_unreachable"}
    assert (await client.get("/livez")).status_code == 200


async def test_lost_connection_alone_loses_no_reply(
    client: httpx.AsyncClient, app: LeanHandler, server: Server, tmp_path: Path
) -> None:
    """The same server, its connections cut: what is written later still arrives."""
    gateway = _gateway(app)
    double = WorkerDouble(server.url, tmp_path, models=(FAKE,))
    double.answer = silent
    double.start()
    call = asyncio.create_task(client.post(PATH, json=BODY))
    await until(lambda: double.received)
    with redis.Redis.from_url(server.url) as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: gateway.mailbox.connected)
    received = double.received[0]
    assert received.request.reply is not None
    double.send(encode(received), received.request.reply)
    assert (await call).status_code == 200
    double.stop()


@limits(max_pending=3)
async def test_too_many_waiting_calls_are_refused(worker: WorkerDouble, client: httpx.AsyncClient) -> None:
    worker.answer = silent
    calls = [asyncio.create_task(client.post(PATH, json=BODY)) for _ in range(3)]
    await until(lambda: len(worker.received) == 3)
    response = await client.post(PATH, json=BODY)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "QUEUE_FULL"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_full_redis_answers_503_and_recovers(
    worker: WorkerDouble, client: httpx.AsyncClient, server: Server
) -> None:
    with redis.Redis.from_url(server.url) as admin:
        admin.config_set("maxmemory", 1)
        response = await client.post(PATH, json=BODY)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "QUEUE_UNAVAILABLE"
        admin.config_set("maxmemory", 0)
    deadline = time.monotonic() + 5
    while (response := await client.post(PATH, json=BODY)).status_code != 200:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_redis_that_takes_no_writes_is_away(
    client: httpx.AsyncClient, app: LeanHandler, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose disk is full, or a replica after a failover the wrong way."""
    gateway = app.gateway
    assert gateway is not None
    with redis.Redis.from_url(server.url) as admin:
        admin.replicaof("127.0.0.1", "1")
        await until(lambda: not gateway.mailbox.connected)
        await asyncio.sleep(1.0)
        response = await client.post(PATH, json=BODY)
        admin.replicaof("NO", "ONE")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "transport_failure")
    assert caplog.text.count("mailbox lost Redis") == 1
    await until(lambda: gateway.mailbox.connected)


async def test_mailbox_entry_that_is_no_reply_harms_no_other(
    worker: WorkerDouble, client: httpx.AsyncClient, app: LeanHandler, server: Server
) -> None:
    assert app.gateway is not None
    with redis.Redis.from_url(server.url) as admin:
        for entry in (
            b"",
            b"\xc1",
            b"\x01",
            b"\x91\x01",
            b"\x91\x95\x90\xc0\xc0\x80\xa0",
            b"\x91\x96\x01\x02\x03\x04\x05\x06",
        ):
            admin.rpush(app.gateway.mailbox.key, entry)
            assert (await client.post(PATH, json=BODY)).status_code == 200


async def test_silent_broker_refuses_within_a_second(setup: Setup, redis_url: str) -> None:
    """It accepts connections and never answers, as behind a firewall that drops."""
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        setup.broker_url = f"redis://127.0.0.1:{black_hole.getsockname()[1]}/0"
        handler = lean.LeanHandler(setup.make)
        async with handler.running() as gateway, _client(handler) as client:
            await until(lambda: gateway.mailbox.connected)
            lag = asyncio.create_task(_worst_lag(1.0))
            started = time.perf_counter()
            response = await client.post(PATH, json=BODY)
            assert time.perf_counter() - started < 1.0
            assert response.status_code == 503
            assert await lag < 0.2


async def test_broker_that_falls_silent_refuses_within_a_second(setup: Setup, server: Server) -> None:
    """It was there when the gateway connected; the publisher is stuck, callers are not."""
    handler = lean.LeanHandler(setup.make)
    async with handler.running() as gateway, _client(handler) as client:
        await until(lambda: gateway.mailbox.connected and gateway.publisher.connected)
        assert server._process is not None
        server._process.send_signal(19)  # SIGSTOP
        started = time.perf_counter()
        responses = await asyncio.gather(*(client.post(PATH, json=BODY) for _ in range(20)))
        assert time.perf_counter() - started < 1.2
        assert {response.status_code for response in responses} == {503}
        server._process.send_signal(18)  # SIGCONT


async def test_gateway_starts_without_its_servers(setup: Setup, server: Server) -> None:
    server.kill()
    handler = lean.LeanHandler(setup.make)
    async with handler.running() as gateway, _client(handler) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        server.start()
        await until(lambda: gateway.mailbox.connected and gateway.publisher.connected)


def _client(handler: LeanHandler) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=handler), base_url="http://testserver", timeout=30)


def _gateway(app: LeanHandler) -> Gateway:
    assert app.gateway is not None
    return app.gateway


async def _worst_lag(seconds: float) -> float:
    """How late the event loop woke at worst."""
    ends = time.monotonic() + seconds
    worst = 0.0
    while time.monotonic() < ends:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        worst = max(worst, time.monotonic() - before - 0.01)
    return worst
