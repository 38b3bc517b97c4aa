"""From options to settings: options go into this process's environment, which `project.settings` then reads."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from project import env
from project.cli import runfile
from project.cli.options import SETTINGS
from protocol import links

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Given:
    """Which servers the user named, by option or environment; empty means ours to choose."""

    broker: str
    redis: str


def apply(options: argparse.Namespace) -> Given:
    """Make the options settings. A Redis broker without a --redis keeps the state too."""
    for option, name in SETTINGS.items():
        value = getattr(options, option, None)
        if value is not None:
            os.environ[name] = str(value)
    given = Given(env.text("SHOAL_BROKER_URL", ""), env.text("SHOAL_REDIS_URL", ""))
    if given.broker and links.is_redis(given.broker) and not given.redis:
        os.environ["SHOAL_REDIS_URL"] = given.broker
        return Given(given.broker, given.broker)
    return given


def settings() -> Any:
    """The settings that every role shares. The first call checks them all: a bad one ends the process, naming it."""
    from project.settings import base

    return base


def data() -> Path:
    """The data folder, known before the settings may be read."""
    return env.folder("SHOAL_DATA", None) or ROOT / ".shoal"


def attach(options: argparse.Namespace) -> runfile.Running | None:
    """Make the options settings, and take what they leave open from the installation that runs with this data."""
    given = apply(options)
    running = runfile.read(data()) if runfile.is_held(data()) else None
    if running is not None and not given.redis:
        for name, value in running.environment.items():
            os.environ.setdefault(name, value)
    return running
