"""Entry: parses the command line and runs one command. Each command's code is imported only when it is asked for."""

import argparse
import importlib
import sys
from collections.abc import Callable

from project.cli.failure import CannotStart
from project.cli.options import parser

# Command -> module and function; each takes the parsed options and answers the exit status.
_RUN = {
    "serve": "serve:run",
    "status": "status:run",
    "stop": "stop:run",
    "manage": "roles:manage",
    "gateway": "roles:gateway",
    "worker": "roles:worker",
    "bundle": "bundle:run",
    "test": "testing:run",
    "measure": "measuring:run",
}


def main(arguments: list[str]) -> int:
    options, rest = parser().parse_known_args(arguments)
    if rest and options.command != "test":
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    module, _, function = _RUN[options.command].partition(":")
    run: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(f"project.cli.{module}"), function)
    try:
        return run(options)
    except CannotStart as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
