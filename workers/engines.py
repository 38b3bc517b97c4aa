"""The dispatcher's side of an engine: starts the process, writes without blocking, reads what came, sees it die."""

import ctypes
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from workers import bundles
from workers.config import WorkerConfig
from workers.engine import pipe

log = logging.getLogger("shoal.engines")

_REPOSITORY = Path(__file__).resolve().parent.parent
_PR_SET_PDEATHSIG = 1


class Engine(Protocol):
    """An engine as the dispatcher uses it."""

    bundle: str

    @property
    def pid(self) -> int: ...

    def send(self, message: dict[str, Any]) -> None:
        """Raises Unsendable."""
        ...

    def flush(self) -> None: ...
    def receive(self) -> Iterator[dict[str, Any]]: ...
    def kill(self) -> str: ...
    def close(self, grace_s: float) -> None: ...


class EngineProcess:
    """One running engine, in its bundle's environment. Owned by the dispatcher thread; nothing here blocks."""

    def __init__(self, config: WorkerConfig, bundle: str, selector: selectors.BaseSelector) -> None:
        """Raises Unusable when the bundle is not there, or no process can be had."""
        self.bundle = bundle
        python = bundles.interpreter(bundle, config)
        self._selector = selector
        self._sock, child = socket.socketpair()
        self._sock.setblocking(False)
        self._incoming = pipe.FrameBuffer()
        self._outgoing = bytearray()
        with child:
            self._process = self._start(python, child, config)
        selector.register(self._sock, selectors.EVENT_READ, self)
        log.info("engine started", extra={"bundle": bundle, "pid": self.pid})

    def _start(self, python: Path, child: socket.socket, config: WorkerConfig) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                [python, "-m", "workers.engine", str(child.fileno()), config.device],
                cwd=_REPOSITORY,
                env=_environment(config, self.bundle, python),
                pass_fds=[child.fileno()],
                start_new_session=True,  # signals to the worker's group must not reach a running forward
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        except OSError as error:
            self._sock.close()
            raise bundles.Unusable(
                f"no engine of its bundle {self.bundle!r} could be started: {error.strerror}"
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; what the socket cannot take now leaves when it can. Raises Unsendable."""
        self._outgoing += pipe.frame(message)
        self.flush()

    def flush(self) -> None:
        try:
            while self._outgoing:
                sent = self._sock.send(memoryview(self._outgoing)[: 1 << 20])
                del self._outgoing[:sent]
        except BlockingIOError:
            pass  # the selector says when there is room again
        except OSError:
            self._outgoing.clear()  # the engine is gone; `receive` reports it
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._selector.modify(self._sock, events, self)

    def receive(self) -> Iterator[dict[str, Any]]:
        """Messages that have arrived. Raises EOFError when the engine is gone."""
        while True:
            try:
                data = self._sock.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            yield from self._incoming.feed(data)

    def kill(self) -> str:
        """End the process at once, wherever it is; returns how it ended, for people to read."""
        self._selector.unregister(self._sock)
        self._sock.close()
        self._process.kill()
        return describe_exit(self._process.wait())

    def close(self, grace_s: float) -> None:
        """Let it end by itself: a closed pipe is its word to go."""
        self._selector.unregister(self._sock)
        self._sock.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def describe_exit(code: int) -> str:
    """`exit code 1`, `SIGSEGV`, …"""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _environment(config: WorkerConfig, bundle: str, python: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        # With other busy processes on the cores, OpenMP's spinning default makes the same forward 5-10 times slower.
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(config.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # the worker resolves files; an engine never downloads
    }
    if python == Path(sys.executable):
        return environment
    # Two releases of transformers do not share where they keep the code of checkpoints, and would meet half-made files.
    environment["HF_MODULES_CACHE"] = str(config.data / "modules" / bundle)
    # These lead to the base's packages before the bundle's own.
    return {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
