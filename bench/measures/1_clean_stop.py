"""Whatever ends it, nothing of it stays: no process, no port."""

import signal
import subprocess
import sys
import time

import psutil

from bench.figure import Figure
from bench.system import ROOT, Serving, System
from project.cli.processes import port_is_free

NAME = "Ctrl-C, `./shoal stop` and kill -9 of the launcher leave nothing behind"
BAR = "no process and no port left within 15 s"

LIMIT_S = 15.0


def run(system: System) -> Figure:
    system.close()
    ways = {"Ctrl-C": _interrupt, "./shoal stop": _stop, "kill -9": _kill}
    left: dict[str, str] = {}
    took: dict[str, float] = {}
    for name, end in ways.items():
        serving = Serving(system.folder(), {"SHOAL_OFFLINE": "1"})
        serving.warm()  # so that there is an engine
        tree = serving.tree()
        started = time.monotonic()
        end(serving)
        _, alive = psutil.wait_procs(tree, timeout=LIMIT_S)
        took[name] = time.monotonic() - started
        stays = [process.name() for process in alive]
        stays += [] if port_is_free("127.0.0.1", serving.port) else [f"port {serving.port}"]
        if stays:
            left[name] = ", ".join(stays)
        serving.stop()
    seconds = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
    return Figure(seconds, not left, "; ".join(f"after {name}: {stays}" for name, stays in left.items()))


def _interrupt(serving: Serving) -> None:
    serving.process.send_signal(signal.SIGINT)


def _stop(serving: Serving) -> None:
    command = [sys.executable, str(ROOT / "shoal"), "stop", "--data", str(serving.data)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _kill(serving: Serving) -> None:
    serving.process.kill()
