"""`bundle`: the environments of bundles on this machine, installed, listed and removed."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from catalog.bundles import BASE, REQUIREMENTS, known
from project.cli import environment
from project.cli.failure import CannotStart
from workers import bundles
from workers.bundles import Condition, Found


def run(options: argparse.Namespace) -> int:
    environment.apply(options)
    folder: Path = environment.settings().SHOAL_BUNDLES
    actions: Mapping[str, Callable[[], int]] = {
        "install": lambda: install(options.name, folder, again=options.again),
        "list": lambda: show(folder),
        "remove": lambda: remove(options.name, folder),
    }
    return actions[options.action]()


def install(name: str, folder: Path, files: Path = REQUIREMENTS, *, again: bool = False) -> int:
    if name not in known(files):
        raise CannotStart(f"There is no bundle {name!r}; there are: {', '.join(known(files))}.")
    if bundles.look(name, folder, files).condition is Condition.BASE:
        print(f"{name} runs in the worker's own environment: there is nothing to install.")
        return 0
    from project.cli import bundling

    with bundling.only_one(folder / name, _say):
        if again or bundles.look(name, folder, files).condition is not Condition.READY:
            bundling.install(bundling.Making(name, files / f"{name}.txt", folder / name, _say))
            _say("Engines that start from now on run in it.")
    print(_line(name, bundles.look(name, folder, files)))
    return 0


def show(folder: Path, files: Path = REQUIREMENTS) -> int:
    """A line for each bundle there is, and for each environment that none of them needs any more."""
    for name in known(files):
        print(_line(name, bundles.look(name, folder, files)))
    for left in sorted(path.name for path in folder.glob("[a-z]*") if path.is_dir() and path.name not in known(files)):
        print(f"{left:<16} left over: no file describes it any more; run `./shoal bundle remove {left}`")
    return 0


def remove(name: str, folder: Path) -> int:
    from project.cli import bundling

    if not name.isidentifier():
        raise CannotStart(f"{name!r} is not the name of a bundle.")
    if name == BASE or not bundling.remove(folder / name, _say):
        print(f"{name} has no environment here: there is nothing to remove.")
        return 0
    print(f"{name} is removed. Engines that run in it end with their worker, or when they are next replaced.")
    return 0


def _line(name: str, found: Found) -> str:
    told = {
        Condition.BASE: "the worker's own environment" if name == BASE else "a process of its own in the base",
        Condition.MISSING: f"run `./shoal bundle install {name}` to have it",
        Condition.BROKEN: f"{found.why}; run `./shoal bundle install {name}`",
        Condition.STALE: f"{found.why}; it still runs; run `./shoal bundle install {name}`",
        Condition.READY: _versions(found),
    }
    return f"{name:<16} {found.condition:<14} {told[found.condition]}"


def _versions(found: Found) -> str:
    if found.marker is None:
        return ""
    own = ", ".join(f"{package} {version}" for package, version in found.marker.own.items())
    shared = ", ".join(f"{package} {version}" for package, version in found.marker.shared.items())
    return f"{own}; of the base: {shared}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
