"""Lists and forgets the batch sizes that workers have learned by running out of memory."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from catalog.tables import aligned
from protocol import ceilings
from protocol.ceilings import Ceilings


class Command(BaseCommand):
    help = "Largest batch costs since a device ran out of memory: list them, or forget them (from its next start on)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=("list", "forget"))
        parser.add_argument("model", nargs="*", help="as `list` shows them")
        parser.add_argument("--device", help="as `list` shows it; default: every device")
        parser.add_argument("--all", action="store_true", help="every model")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        files = [file for file in ceilings.files(settings.SHOAL_DATA) if options["device"] in (None, file.stem)]
        if action == "list":
            self._list(files)
        elif not options["model"] and not options["all"]:
            raise CommandError("Say which to forget: models as `ceilings list` shows them, or --all.")
        else:
            self._forget(files, None if options["all"] else set(options["model"]))

    def _list(self, files: list[Path]) -> None:
        rows = [("device", "model", "digest", "largest cost", "memory", "learned")]
        for file in files:
            for digest, one in ceilings.read(file).items():
                learned = datetime.fromtimestamp(one.at, UTC).isoformat(timespec="seconds")
                rows.append((file.stem, one.model, digest, str(one.cost), str(one.memory), learned))
        self.stdout.write(aligned(rows))

    def _forget(self, files: list[Path], models: set[str] | None) -> None:
        forgotten = sum(_forget(file, models) for file in files)
        if not forgotten and models:
            raise CommandError(f"None is kept of {', '.join(sorted(models))} in {settings.SHOAL_DATA}.")
        self.stdout.write(f"{forgotten} forgotten; a worker that runs keeps to what it knows until it starts again")


def _forget(file: Path, models: set[str] | None) -> int:
    before = 0

    def kept(found: Ceilings) -> Ceilings:
        nonlocal before
        stays = {digest: one for digest, one in found.items() if models is not None and one.model not in models}
        before = len(found) - len(stays)
        return stays

    try:
        ceilings.change(file, kept)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from error
    return before
