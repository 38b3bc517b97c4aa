"""A whole Shoal of a test's own, every process of it a real one that may be killed, frozen and started again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import redis

from catalog.snapshot import Model
from project.cli import embedded, processes, services
from tests.service.harness import ROOT, Fleet, Services, Worker, fake_model, wait_until

DEADLINE_S = 60.0  # of a waiting call; tests check that no answer comes later


class Server(Protocol):
    """A broker or Redis that a test may hurt."""

    url: str

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...
    def signal(self, number: signal.Signals) -> None: ...


class RedisServer:
    """A Valkey that has every write on disk before it answers, so that being killed loses nothing."""

    def __init__(self, folder: Path) -> None:
        plan = embedded.plan(folder, embedded.from_wheel())
        self._command = [*plan.command, "--appendfsync", "always"]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = plan.url

    def start(self) -> None:
        self._process = processes.spawn(self._command, output=subprocess.DEVNULL)
        embedded.wait_until_ready(self.url, self._process)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            processes.end(self._process, grace=5)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@dataclass
class GatewayProcess:
    """One gateway on one port, which it keeps when it is started again."""

    port: int
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        launch = services.gateway_launch("127.0.0.1", self.port)
        with self.log.open("ab") as output:
            self.process = processes.spawn(launch.command, cwd=ROOT, env=self.environment, output=output)
        if wait:
            wait_until(lambda: services.responds(f"{self.url}/readyz"), 60, f"a ready gateway, see {self.log}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            processes.end(self.process, grace=15)


@dataclass
class System:
    """Redis, broker, gateways and workers of one test."""

    folder: Path
    state: Server
    broker: Server
    model: Model
    database: Path  # with all its tables, and nothing in them
    settings: dict[str, Any] = field(default_factory=dict)  # of every process
    gateways: list[GatewayProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = Fleet(Services(self.broker.url, self.state.url), self.folder)
        self.redis = redis.Redis.from_url(self.state.url, socket_timeout=10)

    @property
    def on_redis(self) -> bool:
        return self.broker is self.state

    @property
    def workers(self) -> list[Worker]:
        """Those that live."""
        return [worker for worker in self.fleet.workers if worker.process.poll() is None]

    def start(self, *, gateways: int = 2, workers: int = 2, worker_settings: dict[str, Any] | None = None) -> None:
        """Everything but the servers, ready to answer."""
        self._write_entry()
        self._make_gateways(gateways)
        for _ in range(workers):
            self.fleet.start(wait=False, **(self.settings | (worker_settings or {})))
        for worker in self.workers:
            worker.wait_for_log(" ready.", 60)
        for gateway in self.gateways:
            gateway.start(wait=False)
        for gateway in self.gateways:
            wait_until(lambda: services.responds(f"{gateway.url}/readyz"), 60, f"a ready gateway, see {gateway.log}")  # noqa: B023

    def start_worker(self, **settings: Any) -> Worker:
        worker = self.fleet.start(wait=False, **(self.settings | settings))
        worker.wait_for_log(" ready.", 60)
        return worker

    def engines(self, worker: Worker) -> list[int]:
        """Process ids of the engines of a worker that lives."""
        children = psutil.Process(worker.process.pid).children()
        return [child.pid for child in children if "workers.engine" in child.cmdline()]

    def stop(self) -> None:
        for gateway in self.gateways:
            gateway.stop()
        self.fleet.end()
        self.redis.close()

    def leftovers(self) -> list[str]:
        """Processes that name this test's folder or were its workers' and live on."""
        marks = {str(self.folder)}
        return [
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["cmdline", "environ", "status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE
            and marks & {(process.info["environ"] or {}).get("SHOAL_FAULT_FOLDER", "")}
        ]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "project.settings.gateway",
            "SHOAL_DATA": str(self.folder / "data"),
            "SHOAL_CATALOG": str(self.folder / "catalog"),
            "SHOAL_REDIS_URL": self.state.url,
            "SHOAL_BROKER_URL": self.broker.url,
            "SHOAL_REQUEST_TIMEOUT_S": str(DEADLINE_S),
            **{name: str(value) for name, value in self.settings.items()},
        }

    def _make_gateways(self, count: int) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        shutil.copy(self.database, self.folder / "data" / self.database.name)
        manage("sync_catalog", environment=self.environment())
        for number in range(count):
            log = self.folder / f"gateway{number}.log"
            self.gateways.append(GatewayProcess(processes.free_port(), self.environment(), log))

    def _write_entry(self) -> None:
        spec = self.model.spec
        entry: dict[str, Any] = {
            "id": spec.model,
            "family": spec.family,
            "primitives": ["encode"],
            "outputs": ["dense"],
        }
        entry |= {"dims": dict(spec.dims), "load": dict(spec.load), "max_items": spec.max_items}
        folder = self.folder / "catalog"
        folder.mkdir()
        (folder / "entry.yaml").write_text(json.dumps(entry))


def manage(*command: str, environment: Mapping[str, str]) -> None:
    line = [sys.executable, "manage.py", *command]
    subprocess.run(line, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def make_database(folder: Path) -> Path:
    """Made once and copied: it takes longer than all else of a system's start."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings.gateway", "SHOAL_DATA": str(folder)}
    manage("migrate", "-v0", environment=environment)
    return folder / "shoal.db"


def make_model(**load: Any) -> Model:
    """A fake model that nobody else's queue on the same broker is named after."""
    given = {"forward_s": 0.005, **load}
    max_items = given.pop("max_items", 32)
    return fake_model(f"fault/{uuid.uuid4().hex[:8]}", max_items=max_items, **given)


def alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
