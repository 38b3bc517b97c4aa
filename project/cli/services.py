"""How each role is started, and how to tell that it is ready."""

import contextlib
import os
import secrets
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import redis

from project.celery import worker_argv, worker_environment
from project.cli import embedded
from project.cli.environment import ROOT
from protocol import names

GATEWAY_SETTINGS = "project.settings.gateway"
IDLE_CONNECTION_S = 75  # longer than the idle time of common load balancers, so that the client side closes first
GATEWAY_GRACE_S = 5


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a service: made anew each time, because a restarted worker needs a new name."""

    command: list[str]
    environment: dict[str, str]
    is_ready: Callable[[], bool] = _always  # asked every 0.1 s from a thread of its own; may block for a second


@dataclass(frozen=True, slots=True)
class Service:
    """Something `serve` keeps running."""

    name: str
    launch: Callable[[], Launch]
    shown: str = ""  # where it can be found, for people
    grace: float = 5.0  # between SIGTERM and SIGKILL
    is_essential: bool = True  # no READY without it
    death_signal: signal.Signals = signal.SIGKILL  # what it gets when the launcher is killed


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def valkey_service(plan: embedded.Plan) -> Service:
    def is_ready() -> bool:
        with redis.Redis.from_url(plan.url, socket_timeout=1, socket_connect_timeout=1) as client:
            return answers(client)

    launch = Launch(list(plan.command), dict(os.environ), is_ready)
    # SIGTERM lets it flush its append-only file even when the launcher was killed.
    shown = f"{embedded.HOST}:{plan.port}, {plan.origin}"
    return Service("valkey", lambda: launch, shown, grace=10, death_signal=signal.SIGTERM)


def answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def gateway_launch(host: str, port: int) -> Launch:
    command = python("-m", "uvicorn", "project.asgi:application", "--host", host.strip("[]"), "--port", str(port))
    command += ["--loop", "uvloop", "--http", "inference.connections:Connection", "--ws", "none"]
    command += [
        "--no-access-log",
        "--log-level",
        "warning",
        "--no-server-header",
        "--timeout-keep-alive",
        str(IDLE_CONNECTION_S),
    ]
    command += ["--timeout-graceful-shutdown", str(GATEWAY_GRACE_S)]
    url = f"{http_url(host, port)}/livez"
    return Launch(command, {**os.environ, "DJANGO_SETTINGS_MODULE": GATEWAY_SETTINGS}, lambda: responds(url))


def gateway_service(host: str, port: int) -> Service:
    return Service("gateway", lambda: gateway_launch(host, port), http_url(host, port), grace=GATEWAY_GRACE_S + 5)


def worker_launch(worker_id: str, device: str) -> Launch:
    environment = worker_environment(worker_id, {**os.environ, "SHOAL_DEVICE": device})
    # Celery warns of root for the sake of pickle, which no worker here accepts; in a container root is common.
    return Launch(python("-W", "ignore:::celery.platforms", *worker_argv(worker_id)), environment)


def worker_service(name: str, device: str, redis_url: str, drain: float) -> Service:
    host = socket.gethostname().split(".")[0]

    def launch() -> Launch:
        worker_id = f"{host}-{name}-{secrets.token_hex(2)}"
        plain = worker_launch(worker_id, device)
        return Launch(plain.command, plain.environment, lambda: beats(redis_url, worker_id))

    return Service(name, launch, device, grace=drain + 5)


def flower_service(port: int) -> Service:
    command = python("-m", "celery", "-A", "project", "flower", f"--conf={ROOT / 'project' / 'flowerconfig.py'}")
    # At INFO it lists every task it knows.
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": GATEWAY_SETTINGS, "SHOAL_LOG_LEVEL": "WARNING"}
    url = http_url("127.0.0.1", port)
    launch = Launch(command, environment, lambda: responds(f"{url}/healthcheck"))
    # It has nothing to save, and its threads take long to notice that they should end.
    return Service("flower", lambda: launch, url, grace=1, is_essential=False)


def http_url(host: str, port: int) -> str:
    """Where a browser on this machine finds what listens on `host`."""
    bare = host.strip("[]")
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bare, bare)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def responds(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as response:
        status: int = response.status
        return status < 300
    return False


def beats(redis_url: str, worker_id: str) -> bool:
    with redis.Redis.from_url(redis_url, socket_timeout=1, socket_connect_timeout=1) as client:
        try:
            return bool(client.exists(names.worker(worker_id)))
        except (redis.ConnectionError, redis.TimeoutError):
            return False
