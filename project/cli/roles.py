"""Commands that become one role of a cluster: they check the settings, then replace this process."""

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from project.cli import environment, preflight, services
from project.cli.failure import CannotStart


def gateway(options: argparse.Namespace) -> int:
    environment.attach(options)
    preflight.check_door(options.host, environment.settings().SHOAL_REQUIRE_KEYS)
    preflight.check_port(options.host, options.port, "--port")
    _become(services.gateway_launch(options.host, options.port))


def worker(options: argparse.Namespace) -> int:
    environment.attach(options)
    settings = environment.settings()
    if settings.SHOAL_DEVICE == "all":
        raise CannotStart(
            "One worker serves one device: name it (--device cuda:0), or run `./shoal serve --device all`."
        )
    _become(services.worker_launch(settings.SHOAL_WORKER_ID, settings.SHOAL_DEVICE))


def manage(options: argparse.Namespace) -> int:
    environment.attach(options)
    from django.core.management import execute_from_command_line

    os.environ["DJANGO_SETTINGS_MODULE"] = services.GATEWAY_SETTINGS
    sys.path.insert(0, str(environment.ROOT))
    execute_from_command_line(["shoal manage", *options.arguments])
    return 0


def _become(launch: "services.Launch") -> NoReturn:
    os.chdir(environment.ROOT)
    os.execve(Path(launch.command[0]), launch.command, launch.environment)
