"""The engine's loop: forwards one at a time on the main thread, loads beside them on their own threads."""

import logging
import os
import queue
import signal
import socket
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import ShoalError
from protocol.log_lines import FieldFormatter
from protocol.spec import ModelSpec
from workers.engine import failures, memory, pipe
from workers.engine.traces import Traces
from workers.families import FAMILIES, HostCopy, LoadedModel, Parkable, family

log = logging.getLogger("shoal.engine")


class Engine:
    """Holds loaded models by digest. Only the main thread runs forwards and unloads, so they never overlap."""

    def __init__(self, sock: socket.socket, device: str) -> None:
        self._sock = sock
        self._device = device
        self._models: dict[str, LoadedModel] = {}
        self._loading: set[str] = set()
        self._parked: set[str] = set()  # digests of models whose weights only the host's memory has
        self._warmed: set[str] = set()  # families
        # transformers replaces itself in sys.modules while it is imported: a thread that imports it too meanwhile gets
        # what it was before, which is empty
        self._warming = threading.Lock()
        self._settled: set[str] = set()  # digests of models that were here when libraries were settled
        self._work: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._send_lock = threading.Lock()
        self._traces = Traces()

    def run(self) -> None:
        """Serve until the pipe closes."""
        threading.Thread(target=self._read, name="pipe", daemon=True).start()
        while (message := self._work.get()) is not None:
            match message["op"]:
                case "forward":
                    self._forward(message)
                case "unload":
                    self._unload(message["digest"])

    def _read(self) -> None:
        """Whatever ends it ends the engine: one that runs and reads nothing would keep all its models waiting."""
        try:
            for message in pipe.read_messages(self._sock):
                self._take(message)
        finally:
            self._work.put(None)

    def _take(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "load":
                self._loading.add(message["digest"])
                threading.Thread(target=self._load, args=(message,), name="load", daemon=True).start()
            case "park" | "wake":
                work = self._park if message["op"] == "park" else self._wake
                threading.Thread(target=work, args=(message["digest"],), name=message["op"], daemon=True).start()
            case "drop":
                self._drop(message["digest"])
            case "warm":
                threading.Thread(target=self._warm, args=(message["families"],), name="warm", daemon=True).start()
            case _:
                self._work.put(message)

    def _warm(self, families: list[str]) -> None:
        with self._warming:
            for name in (FAMILIES.keys() & set(families)) - self._warmed:
                family(name).warm()
                self._warmed.add(name)
        self._settle()

    def _settle(self) -> None:
        memory.settle_libraries()
        self._settled = self._loading | self._models.keys()

    def _send(self, message: dict[str, Any]) -> None:
        data = pipe.frame(message)
        with self._send_lock:
            self._sock.sendall(data)

    def _load(self, message: Mapping[str, Any]) -> None:
        digest, started = message["digest"], time.monotonic()
        try:
            model, size = self._load_model(message)
        except Exception as error:  # a load may fail in any way its library can; the dispatcher answers the callers
            self._loading.discard(digest)
            self._load_failed(digest, error)
            return
        self._models[digest] = model
        self._loading.discard(digest)
        self._send(
            {
                "op": "loaded",
                "digest": digest,
                "bytes": size,
                "packed": model.packed,
                "facts": dict(model.facts()),
                "can_park": _host_copy(model) is not None,
                "seconds": time.monotonic() - started,
            }
        )

    def _load_failed(self, digest: str, error: Exception) -> None:
        log.warning("load failed", extra={"digest": digest}, exc_info=error)
        memory.give_back()
        typed = error.to_wire() if isinstance(error, ShoalError) else None
        facts = {"kind": failures.kind_of(error), "message": _summary(error), "error": typed}
        self._send({"op": "load_failed", "digest": digest, **facts})

    def _load_model(self, message: Mapping[str, Any]) -> tuple[LoadedModel, int]:
        spec = ModelSpec.from_wire(message["spec"])
        folder = Path(message["folder"]) if message["folder"] else None
        digest = message["digest"]

        def report(share: float) -> None:
            self._send({"op": "progress", "digest": digest, "share": float(share)})

        code = family(spec.family)
        if spec.family not in self._warmed:
            self._warm([spec.family])
        model = code.load(spec, folder, self._device, report)
        return model, model.bytes

    def _host_copy(self, digest: str) -> HostCopy:
        copy = _host_copy(self._models[digest])
        assert copy is not None, "the dispatcher was told that it cannot be parked"
        return copy

    def _park(self, digest: str) -> None:
        """The dispatcher sends no forward to it before it has woken; one that cannot be parked is unloaded."""
        started = time.monotonic()
        try:
            size = self._host_copy(digest).park()
        except Exception as error:  # the host may have no memory for it
            log.warning("not parked: %s", _summary(error), extra={"digest": digest})
            self._work.put({"op": "unload", "digest": digest})
            return
        self._parked.add(digest)
        memory.give_back()
        self._send({"op": "parked", "digest": digest, "bytes": size, "seconds": time.monotonic() - started})

    def _wake(self, digest: str) -> None:
        started = time.monotonic()
        self._parked.discard(digest)
        try:
            self._host_copy(digest).wake()
        except Exception as error:  # the device may have less room than thought
            del self._models[digest]
            self._load_failed(digest, error)
            return
        self._send({"op": "woken", "digest": digest, "seconds": time.monotonic() - started})

    def _drop(self, digest: str) -> None:
        """Whatever the host's memory has of it: the model itself while it is parked, or else only a copy."""
        if digest in self._parked:
            self._parked.discard(digest)
            self._forget(digest)
        else:
            self._host_copy(digest).drop()
            memory.give_back()

    def _unload(self, digest: str) -> None:
        self._forget(digest)
        self._send({"op": "unloaded", "digest": digest, "rss": memory.resident_bytes()})

    def _forget(self, digest: str) -> None:
        self._models.pop(digest, None)
        was_settled = digest in self._settled
        memory.give_back(all_of_it=was_settled)
        if was_settled:
            self._settle()

    def _forward(self, message: Mapping[str, Any]) -> None:
        started = time.perf_counter()
        try:
            inputs = message["inputs"]
            outputs = self._models[message["digest"]].forward(inputs, message["key"])
            if len(outputs) != len(inputs):
                raise RuntimeError(f"{len(inputs)} inputs gave {len(outputs)} outputs")
        except Exception as error:  # a forward may fail in any way; the dispatcher isolates the entry that did it
            self._traces.log(message["batch"], error)
            kind = failures.kind_of(error)
            if kind == "lost":  # the closed pipe tells the dispatcher, which starts another engine
                os._exit(failures.DEVICE_LOST)
            if kind == "memory":
                memory.give_back()
            self._send({"op": "failed", "batch": message["batch"], "kind": kind, "error": type(error).__name__})
            return
        seconds = time.perf_counter() - started
        self._send({"op": "done", "batch": message["batch"], "outputs": list(outputs), "seconds": seconds})


def _host_copy(model: LoadedModel) -> HostCopy | None:
    return model.host_copy if isinstance(model, Parkable) else None


def _summary(error: BaseException) -> str:
    """Why a load failed, for the operator's eyes: no customer's input is in it, but paths may be."""
    return f"{type(error).__name__}: {error}"[:500]


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(FieldFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for library in ("docling", "gliner", "gliner2"):  # tell every step of every document and load
        logging.getLogger(library).setLevel(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)  # libraries' own, about what they call in each other


def main(fd: int, device: str) -> None:
    # The worker decides when an engine ends: by closing the pipe. Ctrl-C reaches the whole terminal group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _log_to_stderr()
    Engine(socket.socket(fileno=fd), device).run()
