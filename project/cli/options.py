"""The command line: what each command takes."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

VERSION = "0.1.0"
DEVICES = "auto, all, cpu, mps or cuda:N"

# Option -> the setting it stands for; a given option wins over the environment.
SETTINGS = {
    "data": "SHOAL_DATA",
    "broker": "SHOAL_BROKER_URL",
    "redis": "SHOAL_REDIS_URL",
    "database": "SHOAL_DATABASE_URL",
    "device": "SHOAL_DEVICE",
    "pool": "SHOAL_POOL",
    "flower_port": "SHOAL_FLOWER_PORT",
    "require_keys": "SHOAL_REQUIRE_KEYS",
}


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="shoal",
        description="One backend for a whole fleet of small open models.",
        epilog="`shoal COMMAND --help` lists a command's options.",
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"shoal {VERSION}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_text, add_options in _COMMANDS:
        add_options(commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False))
    return root


def _serve(command: argparse.ArgumentParser) -> None:
    _door(command)
    _device(command)
    command.add_argument("--workers", type=_count, default=1, metavar="N", help="workers per device (default 1)")
    command.add_argument("--no-flower", action="store_true", help="do without Flower, Celery's monitor")
    command.add_argument("--flower-port", type=_port, metavar="PORT", help="default 5555")
    _places(command)


def _gateway(command: argparse.ArgumentParser) -> None:
    _door(command)
    _places(command)


def _worker(command: argparse.ArgumentParser) -> None:
    _device(command)
    command.add_argument("--pool", metavar="NAME", help="serve the queues of this pool (default: default)")
    _places(command)


def _test(command: argparse.ArgumentParser) -> None:
    size = command.add_mutually_exclusive_group()
    size.add_argument("--fast", action="store_true", help="only the tiers that start no system and load no weights")
    size.add_argument("--heavy", action="store_true", help="also what takes minutes")
    command.usage = "shoal test [--fast | --heavy] [pytest arguments …]"


def _manage(command: argparse.ArgumentParser) -> None:
    _places(command)
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="for example: create_key --name me")


def _bundle(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, help_text in (
        ("install", "make a bundle's environment, or make it anew when it is stale or broken"),
        ("list", "name the bundles, and what of each is installed here"),
        ("remove", "delete a bundle's environment"),
    ):
        one = actions.add_parser(action, help=help_text, description=help_text, allow_abbrev=False)
        if action != "list":
            one.add_argument("name", metavar="NAME", help="as `./shoal bundle list` has it")
        if action == "install":
            one.add_argument("--again", action="store_true", help="also when nothing is wrong with it")
        _data(one)


def _status(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument(
        "--here", action="store_true", help="healthy only if a worker of this host beats (a container's check)"
    )
    _places(command)


def _stop(command: argparse.ArgumentParser) -> None:
    _data(command)


def _measure(command: argparse.ArgumentParser) -> None:
    command.add_argument("issue", nargs="?", type=int, metavar="N", help="only measures whose file starts with N_")
    command.add_argument("--list", action="store_true", help="name the measures and their bars, run nothing")
    command.add_argument("--only", metavar="NAME", help="only the measure in N_NAME.py; docs stay as they are")


def _door(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1; any but loopback needs keys")
    command.add_argument("--port", type=_port, default=8080, help="default 8080")
    command.add_argument("--require-keys", action="store_const", const="1", help="refuse calls without an API key")


def _device(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", metavar="DEVICE", help=f"{DEVICES} (default auto); all: a worker per CUDA device")


def _places(command: argparse.ArgumentParser) -> None:
    command.add_argument("--broker", metavar="URL", help="amqp:// or redis:// (default: the same as --redis)")
    command.add_argument("--redis", metavar="URL", help="mailboxes, results, catalog (default: an embedded server)")
    command.add_argument("--database", metavar="URL", help="postgres:// or sqlite:// (default: a file in --data)")
    _data(command)


def _data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", type=_folder, metavar="DIR", help="what must last (default: .shoal in the checkout)")


_COMMANDS: Sequence[tuple[str, str, Callable[[argparse.ArgumentParser], None]]] = (
    ("serve", "start everything: embedded broker, gateway, worker, Flower", _serve),
    ("status", "show what runs, the models and the queues; status 0 when healthy", _status),
    ("stop", "end what `serve` started", _stop),
    ("manage", "run a management command: create_key, models, createsuperuser, …", _manage),
    ("gateway", "run one gateway in the foreground, for a cluster", _gateway),
    ("worker", "run one worker in the foreground, for a cluster", _worker),
    ("bundle", "install, list or remove sets of dependencies that models run in", _bundle),
    ("test", "run the tests; other arguments go to pytest", _test),
    ("measure", "measure what the project promises, on this machine", _measure),
)


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _folder(text: str) -> str:
    """Absolute, because children run in the checkout's folder rather than in the caller's."""
    return str(Path(text).expanduser().absolute())
