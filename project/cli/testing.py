"""`test`: pytest with the tiers that were asked for; it replaces this process, so its exit status is pytest's."""

import argparse
import os
import sys

from project.cli.environment import ROOT

# These start no whole system and load no weights.
FAST = ("unit", "checks", "catalog", "gateway", "admin")


def pytest_arguments(options: argparse.Namespace) -> list[str]:
    given = [word for word in options.rest if word != "--"]
    if options.heavy or "-m" in given:
        return given
    chosen = f"({' or '.join(FAST)}) and not heavy and not gpu" if options.fast else "not heavy"
    return ["-m", chosen, *given]


def run(options: argparse.Namespace) -> int:
    os.chdir(ROOT)
    command = [sys.executable, "-m", "pytest", *pytest_arguments(options)]
    sys.stdout.flush()
    os.execv(command[0], command)
