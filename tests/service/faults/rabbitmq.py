"""A RabbitMQ node of the tests' own: its name, ports and data are nobody else's, so it may be killed and frozen."""

import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

from project.cli import processes

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the script behind the one on the PATH, which wants to be root
START_S = 120.0


def server() -> Path | None:
    """The start script of an installed RabbitMQ."""
    if SERVER.exists():
        return SERVER
    found = shutil.which("rabbitmq-server")
    return Path(found) if found else None


class Node:
    """Started by hand, killed by hand; what is durable survives both."""

    def __init__(self, script: Path, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._script = script
        self._folder = folder
        self._port = processes.free_port()
        self._name = f"shoal{uuid.uuid4().hex[:10]}@localhost"
        self._dist_port = processes.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/shoal"
        self.log = folder / "node.log"
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self._port}",
            "default_vhost = shoal",
            "disk_free_limit.absolute = 50MB",
        ]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (folder / "plugins").write_text("[].\n")

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = processes.spawn([str(self._script)], env=self._environment(), output=output)
        self._wait()

    def kill(self) -> None:
        """As the kernel would: nothing is said to clients, nothing is flushed."""
        assert self._process is not None
        processes.signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            processes.end(self._process, grace=20)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        processes.signal_group(self._process.pid, number)

    def control(self, *arguments: str) -> str:
        """What `rabbitmqctl` says of this node."""
        command = [str(self._script.with_name("rabbitmqctl")), "-q", "-n", self._name, *arguments]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def set(self, name: str, value: str) -> None:
        """An Erlang term as a setting of the running node, for connections that are made later."""
        self.control("eval", f"application:set_env(rabbit, {name}, {value}).")

    def _wait(self) -> None:
        """Until it speaks AMQP: it listens before it does."""
        assert self._process is not None
        until = time.monotonic() + START_S
        while not _greets(self._port):
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the RabbitMQ node did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),  # its cookie is its own
            "LANG": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, so it is the node that spawn ties to us
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(connection.recv(1))
    except OSError:
        return False
