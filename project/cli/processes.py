"""Starting and ending child processes so that none is ever left behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
TETHER = Path(__file__).with_name("tether.py")


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    output: IO[bytes] | int | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start `command` (an absolute path first) in its own process group, tied to this process's life.

    Call it from the main thread: see `tether`. stdout and stderr both go to `output`.
    """
    tether = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), str(int(death_signal))]
    return subprocess.Popen(
        [*tether, *command],
        env=None if env is None else dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        start_new_session=True,
    )


def signal_group(pid: int, number: signal.Signals) -> bool:
    """Signal the process group that `pid` leads or led; False when nobody of it is left."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        return False
    return True


def end(process: subprocess.Popen[Any], grace: float) -> None:
    """SIGTERM, wait up to `grace`, then SIGKILL whatever is left of its group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    signal_group(process.pid, signal.SIGKILL)


def port_is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
