"""The machine in one phrase, as figures need it beside them."""

import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

from workers import devices

ROOT = Path(__file__).resolve().parents[1]


def describe() -> str:
    parts = [f"{devices.cpu_count()} cores of {_cpu()}", f"{psutil.virtual_memory().total / (1 << 30):.0f} GiB"]
    parts += [*_cards(), f"{platform.system()} {platform.machine()}", f"Python {platform.python_version()}"]
    return ", ".join([*parts, f"torch {metadata.version('torch')}", f"commit {_commit()}"])


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)$", info.read_text(), re.M) if info.exists() else None
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cards() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return _lines(command)


def _commit() -> str:
    commit = _lines(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]) or ["unknown"]
    changed = _lines(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return commit[0] + (" with changes" if changed else "")


def _lines(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
