"""Checks before anything is started. Each raises CannotStart with what is wrong and what to do."""

import importlib.util
import ipaddress
import re
import shutil
import socket
import tempfile
from pathlib import Path

import psutil
import redis
from kombu.connection import Connection

from project.cli import embedded, processes
from project.cli.failure import CannotStart

LEAST_FREE = 256 << 20
# One module of each package that a child imports first thing.
MODULES = ("django", "rest_framework", "unfold", "uvicorn", "uvloop", "httptools", "flower", "msgpack", "torch")


def check_packages() -> None:
    for name in MODULES:
        if importlib.util.find_spec(name) is None:
            raise CannotStart(
                f"The package {name} is missing in {processes.ROOT / '.venv'}: remove that folder and try again."
            )


def check_data(data: Path) -> None:
    """The data folder can be made and written to, and its disk is not full."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)  # the database and keys are nobody else's business
        with tempfile.TemporaryFile(dir=data):
            pass
    except OSError as error:
        raise CannotStart(
            f"The data folder {data} cannot be written to ({error.strerror}): pass another --data DIR."
        ) from None
    free = shutil.disk_usage(data).free
    if free < LEAST_FREE:
        raise CannotStart(
            f"Only {free >> 20} MB are free on the disk of {data}, and {LEAST_FREE >> 20} MB are the least: "
            "make room, or pass another --data DIR."
        )


def check_port(host: str, port: int, option: str) -> None:
    try:
        addresses = _addresses(host)
    except OSError as error:
        raise CannotStart(f"The host {host} is not known here ({error.strerror}): pass another --host.") from None
    if any(not processes.port_is_free(address, port) for address in addresses):
        raise CannotStart(f"Port {port} is taken{_by_whom(port)}: pass another {option}, or end what listens there.")


def check_door(host: str, keys_required: bool) -> None:
    """Whoever reaches the host may use the models, so only loopback goes without keys."""
    if not is_loopback(host) and not keys_required:
        raise CannotStart(
            f"{host} can be reached from other machines, and API keys are not required: make a key with "
            "`./shoal manage create_key --name NAME` and pass --require-keys, or stay on 127.0.0.1."
        )


def check_redis(url: str, setting: str) -> None:
    """It answers, is new enough and would not throw queues away when full."""
    try:
        with redis.Redis.from_url(url, socket_timeout=4, socket_connect_timeout=4) as client:
            version = str(client.info("server").get("redis_version", "0"))
            policy = client.config_get("maxmemory-policy").get("maxmemory-policy", "")
    except redis.ResponseError:  # a managed service that hides its configuration
        return
    except (redis.RedisError, ValueError) as error:
        raise CannotStart(f"{setting}: {without_password(url)} does not answer as a Redis does: {error}.") from None
    oldest = embedded.OLDEST_MAJOR
    if int(version.split(".")[0]) < oldest:
        raise CannotStart(
            f"{setting}: {without_password(url)} is version {version}; {oldest}.0 is the oldest that will do."
        )
    if policy not in ("", "noeviction"):
        # Also the volatile ones: mailboxes, results and payloads carry a time to live.
        lost = "queued requests" if policy.startswith("allkeys") else "results and replies"
        raise CannotStart(
            f"{setting}: {without_password(url)} would drop {lost} when its memory is full "
            f"(maxmemory-policy {policy}): set maxmemory-policy to noeviction."
        )


def check_amqp(url: str, setting: str) -> None:
    try:
        with Connection(url, connect_timeout=4) as connection:
            connection.connect()
    except Exception as error:  # transports raise what they like; all of it means the same here
        raise CannotStart(
            f"{setting}: {without_password(url)} cannot be reached: {str(error) or type(error).__name__}."
        ) from None


def is_loopback(host: str) -> bool:
    try:
        return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in _addresses(host))
    except OSError:
        return False


def without_password(url: str) -> str:
    return re.sub(r"//[^@/]*@", "//…@", url)


def _addresses(host: str) -> set[str]:
    found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    return {str(entry[4][0]) for entry in found}


def _by_whom(port: int) -> str:
    """` by python3 (pid 12)` where the system tells; it tells others' processes to root only."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})" if connection.pid else ""
    except psutil.Error:
        pass
    return ""
