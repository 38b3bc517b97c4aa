"""Ends a thread of a process under test from within, as an error that nobody foresaw would."""

import json
import time
from pathlib import Path

from tests.service.harness import wait_until

# Python runs this at the start of every process that has its folder on the path. A thread that waits in the kernel
# ends when it comes back from there, so the victim must have something to do.
PROGRAM = """
import ctypes, json, os, threading, time
from pathlib import Path

def lurk(orders=Path({folder!r}) / f"{{os.getpid()}}.json"):
    while not orders.exists():
        time.sleep(0.05)
    name = json.loads(orders.read_text())
    for thread in threading.enumerate():
        if thread.name == name:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    orders.with_suffix(".done").touch()

threading.Thread(target=lurk, name="assassin", daemon=True).start()
"""


class Assassin:
    """`environment` makes a process vulnerable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(PROGRAM.format(folder=str(folder)))
        self.environment = {"PYTHONPATH": str(folder)}

    def kill(self, pid: int, thread: str) -> float:
        """Answers when it was done, monotonic."""
        order = self._folder / f"{pid}.json"
        draft = order.with_suffix(".draft")
        draft.write_text(json.dumps(thread))
        draft.replace(order)
        wait_until(lambda: order.with_suffix(".done").exists(), 10, "the order to be carried out")
        return time.monotonic()
