"""What `serve` shows: its own lines, and its children's with their names before them, which also go to data/logs."""

import contextlib
import logging.handlers
import sys
import threading
from collections import deque
from pathlib import Path

from project import env

TAIL = 12
LOG_BYTES, LOG_FILES = 10 << 20, 3
WIDTH = 9
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95)


class Output:
    """Thread-safe. A terminal that went away is no reason to stop serving."""

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._lock = threading.Lock()
        self._files: dict[str, _LogFile] = {}
        self._tails: dict[str, deque[str]] = {}
        self._is_coloured = sys.stdout.isatty() and not env.text("NO_COLOR", "")

    def say(self, text: str, *unlogged: str) -> None:
        """A line of the launcher's own; what must not be kept in a file goes into `unlogged`."""
        with self._lock:
            self._file("launcher").emit(_record(text))
            self._print("\n".join([text, *unlogged]))

    def child(self, name: str, line: str) -> None:
        """A line that a child wrote."""
        with self._lock:
            self._file(name).emit(_record(line))
            self._tails.setdefault(name, deque(maxlen=TAIL)).append(line)
            self._print(f"{self._mark(name)} {line}")

    def tail(self, name: str) -> list[str]:
        """The last lines that this child wrote."""
        with self._lock:
            return list(self._tails.get(name, ()))

    def close(self) -> None:
        with self._lock:
            for handler in self._files.values():
                handler.close()

    def _mark(self, name: str) -> str:
        mark = f"{name:<{WIDTH}}|"
        if not self._is_coloured:
            return mark
        colour = _COLOURS[list(self._tails).index(name) % len(_COLOURS)]
        return f"\033[{colour}m{mark}\033[0m"

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(text, flush=True)

    def _file(self, name: str) -> "_LogFile":
        if name not in self._files:
            path = self._logs / f"{name}.log"
            self._files[name] = _LogFile(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, delay=True)
        return self._files[name]


class _LogFile(logging.handlers.RotatingFileHandler):
    """A full disk costs lines of the file and nothing else: they are still shown, and children are still read."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass  # the standard one prints a traceback for every line

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def _record(text: str) -> logging.LogRecord:
    return logging.LogRecord("", logging.INFO, "", 0, text, None, None)
