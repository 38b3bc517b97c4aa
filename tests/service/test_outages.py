"""Redis goes away and comes back, on its own address, while a worker works."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from project.cli import embedded, processes
from tests.service.harness import Fleet, Gateway, Services, fake_model, wait_until


class Server:
    """A Redis of this test's own that can be ended and started again with its data."""

    def __init__(self, folder: Path) -> None:
        self._plan = embedded.plan(folder, embedded.from_wheel())
        self.url = self._plan.url
        self.start()

    def start(self) -> None:
        self._process = processes.spawn(self._plan.command, output=subprocess.DEVNULL)
        embedded.wait_until_ready(self.url, self._process)

    def end(self) -> None:
        processes.end(self._process, grace=5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    yield server
    server.end()


@pytest.fixture
def services(server: Server, redis_url: str) -> Services:
    """The broker is the session's; the state is this test's."""
    return Services(broker_url=redis_url, redis_url=server.url)


def test_replies_wait_for_redis_and_nothing_is_acknowledged_before(
    fleet: Fleet, gateway: Gateway, services: Services, server: Server
) -> None:
    model = fake_model("fake/slow", forward_s=1.0)
    gateway.serve(model)
    worker = fleet.start()
    ids = [gateway.send(model) for _ in range(5)]
    wait_until(lambda: gateway.unacknowledged() == 5, what="all held")
    server.end()
    worker.wait_for_log("replies wait for redis")
    assert gateway.unacknowledged() == 5
    server.start()
    gateway.redis.close()
    found = gateway.collect(ids)
    assert all(reply.error is None for reply in found.values())
    wait_until(lambda: gateway.unacknowledged() == 0, what="everything acknowledged")
    assert worker.process.poll() is None


def test_a_worker_serves_again_after_its_broker_was_restarted(tmp_path: Path, server: Server, redis_url: str) -> None:
    services = Services(broker_url=server.url, redis_url=redis_url)
    fleet, gateway, model = Fleet(services, tmp_path), Gateway(services), fake_model("fake/echo")
    try:
        gateway.serve(model)
        worker = fleet.start()
        gateway.collect([gateway.send(model)])
        server.end()
        time.sleep(1.0)
        server.start()
        gateway.close()
        gateway = Gateway(services)
        gateway.collect([gateway.send(model) for _ in range(5)])
        wait_until(lambda: gateway.unacknowledged() == 0, what="everything acknowledged")
        assert worker.process.poll() is None
    finally:
        gateway.close()
        fleet.end()


def test_a_full_redis_delays_replies_and_loses_none(tmp_path: Path, server: Server) -> None:
    services = Services(broker_url=server.url, redis_url=server.url)
    fleet, gateway, model = Fleet(services, tmp_path), Gateway(services), fake_model("fake/echo")
    try:
        gateway.serve(model)
        worker = fleet.start()
        gateway.collect([gateway.send(model)])
        worker.signal(signal.SIGSTOP)
        ids = [gateway.send(model) for _ in range(5)]
        gateway.redis.config_set("maxmemory", 1)
        worker.signal(signal.SIGCONT)
        worker.wait_for_log("replies wait for redis")
        assert gateway.redis.llen(gateway.queue(model)) == 0
        gateway.redis.config_set("maxmemory", 0)
        gateway.collect(ids)
        wait_until(lambda: gateway.unacknowledged() == 0, what="everything acknowledged")
        assert worker.process.poll() is None
    finally:
        gateway.close()
        fleet.end()


def test_a_broker_behind_a_unix_socket_with_password_and_database(tmp_path: Path, redis_url: str) -> None:
    socket = tmp_path / "redis.sock"
    binary = embedded.from_wheel().path
    command = [str(binary), "--port", "0", "--unixsocket", str(socket), "--requirepass", "s3c@ret", "--save", ""]
    process = processes.spawn(command, output=subprocess.DEVNULL)
    services = Services(broker_url=f"unix://:s3c%40ret@{socket}?db=3", redis_url=redis_url)
    fleet = Fleet(services, tmp_path)
    try:
        wait_until(socket.exists, what="the socket")
        gateway, model = Gateway(services), fake_model("fake/echo")
        gateway.serve(model)
        fleet.start()
        gateway.collect([gateway.send(model)])
        wait_until(lambda: gateway.unacknowledged() == 0, what="everything acknowledged")
        with redis.Redis.from_url(services.broker_url) as client:
            assert client.exists("_kombu.binding.shoal")
        gateway.close()
    finally:
        fleet.end()
        processes.end(process, grace=5)
