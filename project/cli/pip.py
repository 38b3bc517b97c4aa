"""pip, run on an environment without one of its own, with signs of life; and what its last words mean."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from project.cli.failure import CannotStart

Say = Callable[[str], None]

QUIET_S = 15.0
_CAUSES = (
    (r"No space left on device", "the disk is full"),
    (r"ResolutionImpossible|conflicting dependencies", "what it pins contradicts itself; see pip's words above"),
    (r"No matching distribution|Could not find a version", "the package index has no such release for this Python"),
    (
        r"NewConnectionError|name resolution|timed out|ReadTimeout|Max retries|Connection refused|ProxyError",
        "the package index cannot be reached; check the network, or pip's own index settings",
    ),
    (r"Permission denied", "a file cannot be written"),
    (r"No module named pip", "the worker's own Python has no pip; make it with `python -m ensurepip`"),
)


def run(python: Path, arguments: list[str], log: Path, say: Say) -> None:
    """On the environment of `python`; all that pip says is added to `log`. Raises CannotStart."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    lines: list[str] = []
    progress = _Progress(say)
    with log.open("a") as file, progress.heartbeat(), _started(command) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            file.write(line)
            lines.append(line)
            progress.show(line)
        code = pip.wait()
    if code:
        say("".join(lines[-12:]).rstrip())
        raise CannotStart(f"`pip {arguments[0]}` failed: {_cause(''.join(lines), code)}. Its whole log is in {log}.")


def clean_environment() -> Mapping[str, str]:
    """Without what would put the base's packages before an environment's own."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """Ended with this block, whatever ends it."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=clean_environment(),
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def _cause(output: str, code: int) -> str:
    return next((meaning for pattern, meaning in _CAUSES if re.search(pattern, output)), f"it ended with status {code}")


class _Progress:
    """pip's output as a short line per package, and a sign of life while a large one takes its time."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._last = time.monotonic()
        self._doing = "pip is starting"

    def show(self, line: str) -> None:
        words = line.split()
        if line.startswith(("Collecting", "Processing")) and len(words) > 1:
            self._tell(words[1].rsplit("/", 1)[-1].split(";")[0])
        elif words[:1] == ["Downloading"] and re.search(r"\([\d.]+ [MG]B\)", line):
            self._tell(" ".join([words[1].rsplit("/", 1)[-1], *words[2:4]]))
        elif line.startswith("Installing collected packages"):
            self._tell(f"unpacking {line.count(',') + 1} packages")

    @contextlib.contextmanager
    def heartbeat(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._beat, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(1):
            if time.monotonic() - self._last > QUIET_S:
                self._tell(f"… still at it: {self._doing}")

    def _tell(self, text: str) -> None:
        self._last = time.monotonic()
        if not text.startswith("…"):
            self._doing = text
        self._say(f"  {text}")
