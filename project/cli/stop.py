"""`stop`: ends what `serve` started, also when its launcher was killed and left something behind."""

import argparse
import os
import signal
import time
from pathlib import Path

import psutil

from project.cli import environment, processes, runfile
from project.cli.failure import CannotStart

LONGEST_S = 90.0


def run(options: argparse.Namespace) -> int:
    environment.apply(options)
    data = environment.data()
    running = runfile.read(data)
    if running is None or not runfile.is_held(data):
        ended = end_recorded(data)
        print(f"ended {', '.join(ended)}" if ended else f"nothing runs with its data in {data}")
        return 0
    try:
        os.kill(running.launcher.pid, signal.SIGTERM)
    except PermissionError:
        raise CannotStart(f"It belongs to another user (pid {running.launcher.pid}): stop it as that user.") from None
    if not _wait_for_release(data):
        print(f"the launcher (pid {running.launcher.pid}) does not end; killing it and its processes")
        os.kill(running.launcher.pid, signal.SIGKILL)
        _wait_for_release(data)
    end_recorded(data)
    print("stopped")
    return 0


def end_recorded(data: Path) -> list[str]:
    """End processes of the last record that still live, with all of their groups; answers their names."""
    running = runfile.read(data)
    alive = [process for process in (running.processes if running else ()) if is_alive(process)]
    for process in alive:
        processes.signal_group(process.pid, signal.SIGTERM)
    psutil.wait_procs([psutil.Process(process.pid) for process in alive if psutil.pid_exists(process.pid)], timeout=5)
    for process in alive:
        processes.signal_group(process.pid, signal.SIGKILL)
    runfile.remove(data)
    return [process.name for process in alive]


def is_alive(process: runfile.Process) -> bool:
    """Whether it is that very process, not a later one with the same number."""
    try:
        found = psutil.Process(process.pid)
        is_same = abs(float(found.create_time()) - process.created) < 1
        return is_same and bool(found.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _wait_for_release(data: Path) -> bool:
    deadline = time.monotonic() + LONGEST_S
    while runfile.is_held(data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)  # a lock of another process cannot be waited for with a timeout
    return True
