"""Keeps services running: starts them, says when each is ready, restarts what dies, ends all of it.

One thread, the main one, decides and starts processes (see `tether` for why it must be the main one). Beside it, each
process has a thread that copies its output and waits for its end, and one that asks whether it is ready; both only
put events into the queue.
"""

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from project.cli import processes, runfile
from project.cli.failure import CannotStart
from project.cli.output import Output
from project.cli.services import Launch, Service

PROBE_EVERY_S = 0.1
PATIENCE_S = 120.0  # for the first readiness of everything
TRIES = 2  # deaths before READY until the start is given up
REMEMBERED_S = 60.0  # deaths longer ago than this are forgiven
_DELAYS = (0.1, 1.0, 2.0, 5.0)  # before the first, second, … restart
CRASH_LOOP_DELAY_S = 15.0


@dataclass(frozen=True, slots=True)
class Exited:
    child: "Child"
    code: int


@dataclass(frozen=True, slots=True)
class Ready:
    child: "Child"


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str


Event = Exited | Ready | Stop


@dataclass(slots=True, eq=False)
class Child:
    """One start of a service."""

    service: Service
    process: subprocess.Popen[bytes]
    created: float
    is_ready: bool = False
    has_ended: threading.Event = field(default_factory=threading.Event)


class Stopped(Exception):
    """Asked to stop."""


def restart_delay(deaths: Sequence[float], now: float) -> float:
    """Seconds until the next start of what died at these times, the last of them just now."""
    recent = sum(now - death < REMEMBERED_S for death in deaths)
    return _DELAYS[recent - 1] if recent <= len(_DELAYS) else CRASH_LOOP_DELAY_S


def describe(code: int) -> str:
    """A wait status in words."""
    if code >= 0:
        return f"ended with status {code}"
    name = signal.Signals(-code).name
    hint = " (by hand, or by the kernel because memory ran out)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


class Supervisor:
    """Use it from the main thread only."""

    def __init__(self, output: Output, on_change: Callable[[], None]) -> None:
        self._output = output
        self._on_change = on_change  # called after a process came, became ready or went
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._children: dict[str, Child] = {}
        self._services: dict[str, Service] = {}  # in order of start; ended in reverse
        self._deaths: dict[str, list[float]] = {}
        self._due: dict[str, float] = {}  # restarts to come
        self._announced = False

    def ask_to_stop(self, reason: str) -> None:
        """Safe in a signal handler."""
        self._events.put(Stop(reason))

    def start(self, services: Iterable[Service]) -> None:
        for service in services:
            self._services[service.name] = service
            self._launch(service)

    def wait_until_ready(self) -> None:
        """Until every essential service is. Raises CannotStart or Stopped."""
        deadline = time.monotonic() + PATIENCE_S
        while waiting := self._not_ready():
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"{waiting[0]} did not become ready within {PATIENCE_S:.0f} s{self._last(waiting[0])}"
                )
            self._step(deadline)
        self._announced = True

    def run(self) -> None:
        """Until asked to stop, which is raised as Stopped."""
        while True:
            self._step(time.monotonic() + 3600)

    def processes(self) -> tuple[runfile.Process, ...]:
        return tuple(
            runfile.Process(name, child.process.pid, child.created, child.is_ready, len(self._deaths.get(name, ())))
            for name, child in self._children.items()
        )

    def end(self) -> None:
        """End all: last started, first ended, but in groups of what may end together. A second signal hastens it."""
        self._due.clear()
        for names in _ending_order(self._services):
            self._end_together([self._children[name] for name in names if name in self._children])

    def _end_together(self, ending: Sequence[Child]) -> None:
        asked = time.monotonic()
        for child in ending:
            if child.process.poll() is None:
                child.process.terminate()
        while living := [child for child in ending if child.process.poll() is None]:
            first = min(living, key=lambda child: child.service.grace)
            until = asked + first.service.grace
            if self._is_hurried(until):
                break
            if time.monotonic() >= until:
                first.process.kill()
                first.process.wait()
        for child in ending:
            processes.end(child.process, grace=0)  # and whatever is left of its group
            child.has_ended.set()

    def _is_hurried(self, until: float) -> bool:
        """Wait for one event, which may be an end or a further wish to stop."""
        try:
            return isinstance(self._events.get(timeout=max(0.0, until - time.monotonic())), Stop)
        except queue.Empty:
            return False

    def _step(self, deadline: float) -> None:
        """Handle one event, or do the restarts that are due."""
        until = min([deadline, *self._due.values()])
        try:
            event = self._events.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            now = time.monotonic()
            for name in [name for name, due in self._due.items() if due <= now]:
                del self._due[name]
                self._launch(self._services[name])
            return
        if isinstance(event, Stop):
            raise Stopped(event.reason)
        if isinstance(event, Ready):
            self._on_ready(event.child)
        else:
            self._on_exit(event.child, event.code)
        self._on_change()

    def _not_ready(self) -> list[str]:
        awaited = [name for name, service in self._services.items() if service.is_essential or name not in self._deaths]
        return [name for name in awaited if name not in self._children or not self._children[name].is_ready]

    def _on_ready(self, child: Child) -> None:
        if child.has_ended.is_set():
            return
        child.is_ready = True
        name, shown = child.service.name, child.service.shown
        again = "again " if self._deaths.get(name) else ""
        self._output.say(f"{name} is ready {again}{f'({shown})' if shown else ''}".rstrip())

    def _on_exit(self, child: Child, code: int) -> None:
        name, now = child.service.name, time.monotonic()
        child.has_ended.set()
        self._children.pop(name, None)
        processes.signal_group(child.process.pid, signal.SIGKILL)  # a dead worker's engines must not stay
        deaths = [death for death in self._deaths.get(name, ()) if now - death < REMEMBERED_S] + [now]
        self._deaths[name] = deaths
        what = f"{name} (pid {child.process.pid}) {describe(code)}"
        if not self._announced and child.service.is_essential and len(deaths) >= TRIES:
            raise CannotStart(f"{what}, {len(deaths)} times{self._last(name)}")
        delay = restart_delay(deaths, now)
        loop = f" It keeps dying: {len(deaths)} times within a minute." if len(deaths) > len(_DELAYS) else ""
        self._output.say(f"{what}; starting it again in {delay:g} s.{loop}")
        self._due[name] = now + delay

    def _last(self, name: str) -> str:
        tail = self._output.tail(name)
        return ". Its last words:\n" + "\n".join(f"    {line}" for line in tail) if tail else "; it said nothing."

    def _launch(self, service: Service) -> None:
        launch = service.launch()
        process = processes.spawn(
            launch.command,
            env=launch.environment,
            cwd=processes.ROOT,
            output=subprocess.PIPE,
            death_signal=service.death_signal,
        )
        child = Child(service, process, _created(process.pid))
        self._children[service.name] = child
        for work, arguments in ((self._watch, (child,)), (self._probe, (child, launch))):
            threading.Thread(target=work, args=arguments, name=f"{service.name}-{process.pid}", daemon=True).start()
        self._on_change()

    def _watch(self, child: Child) -> None:
        copying = threading.Thread(target=self._copy, args=(child,), daemon=True)
        copying.start()
        code = child.process.wait()
        copying.join(0.5)  # its last words; a grandchild may hold the pipe open for longer
        child.has_ended.set()
        self._events.put(Exited(child, code))

    def _copy(self, child: Child) -> None:
        """Until the last process of its group closes its end."""
        stdout = child.process.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                self._output.child(child.service.name, line.decode(errors="replace").rstrip())

    def _probe(self, child: Child, launch: Launch) -> None:
        while not child.has_ended.wait(PROBE_EVERY_S):
            if launch.is_ready():
                self._events.put(Ready(child))
                return


def _created(pid: int) -> float:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def _ending_order(services: dict[str, Service]) -> list[list[str]]:
    """Workers drain first, while gateways still answer their callers; the server that all of them need goes last."""
    names = list(services)
    workers = [name for name in names if name.startswith("worker")]
    last = [name for name in names if name == "valkey"]
    return [workers, [name for name in names if name not in workers + last], last]
