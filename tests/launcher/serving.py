"""`./shoal serve` as a subprocess, for tests that look at the whole."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from project.cli import processes, runfile
from project.cli.processes import ROOT

READY_S = 120.0


def clean() -> dict[str, str]:
    """This process's environment, without the settings that tests run with."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "DJANGO_"))}


class Refused(Exception):
    """It ended before READY; holds all that it said."""


class Serving:
    """One `serve` on free ports, from READY on."""

    def __init__(self, data: Path, environment: dict[str, str], *options: str) -> None:
        self.data = data
        self.port, self.flower_port = processes.free_port(), processes.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._lines: list[str] = []
        self._is_ready = threading.Event()
        ports = ("--port", str(self.port), "--flower-port", str(self.flower_port))
        started = time.monotonic()
        self.process = processes.spawn(
            [sys.executable, str(ROOT / "shoal"), "serve", "--data", str(data), *ports, *options],
            env={**clean(), "SHOAL_OFFLINE": "1", **environment},
            output=subprocess.PIPE,
            death_signal=signal.SIGTERM,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._is_ready.wait(READY_S)
        self.ready_s = time.monotonic() - started
        if "READY http" not in self.output:
            self.stop()
            raise Refused(self.output)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.append(line.decode().rstrip())
                if line.startswith(b"curl "):  # the last line of the announcement
                    self._is_ready.set()
        self._is_ready.set()  # it ended; the starter looks

    @property
    def output(self) -> str:
        return "\n".join(self._lines)

    @property
    def record(self) -> runfile.Running:
        found = runfile.read(self.data)
        assert found is not None
        return found

    def pid(self, name: str) -> int:
        return {process.name: process.pid for process in self.record.processes}[name]

    def wait_until_replaced(self, name: str, pid: int) -> None:
        deadline = time.monotonic() + 30
        while not any(p.name == name and p.pid != pid and p.ready for p in self.record.processes):
            assert time.monotonic() < deadline, f"{name} was not replaced"
            time.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; answers its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(90)
        self._reader.join(5)
        return code


@contextlib.contextmanager
def serving(data: Path, environment: dict[str, str], *options: str) -> Iterator[Serving]:
    system = Serving(data, environment, *options)
    try:
        yield system
    finally:
        system.stop()


def shoal(command: str, data: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Another command on the same data."""
    line = [sys.executable, str(ROOT / "shoal"), command, "--data", str(data), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False, env=clean())
