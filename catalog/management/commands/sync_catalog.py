"""Reads the entry files into the database and publishes the catalog."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from catalog import loader, registry
from catalog.sync import sync

MOST_NAMED = 20  # with `--verbosity 0`: a first start adds all that ship


class Command(BaseCommand):
    help = "Bring the catalog in the database in line with its files, and publish it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="only say whether the files are valid")
        parser.add_argument(
            "--folder",
            type=Path,
            action="append",
            help="read this folder (may be repeated) instead of the shipped entries and SHOAL_CATALOG",
        )

    def handle(self, *args: Any, check: bool, folder: list[Path] | None, **options: Any) -> None:
        extra = [settings.SHOAL_CATALOG] if settings.SHOAL_CATALOG else []
        try:
            entries = loader.load(folder or [loader.ENTRIES, *extra])
        except loader.CatalogError as error:
            raise CommandError("\n".join(["The catalog is not valid:", *error.problems])) from None
        if check:
            self.stdout.write(f"{len(entries)} entries, all valid")
            return
        outcome = sync(entries, timezone.now())
        for line in outcome.lines(None if options["verbosity"] else MOST_NAMED) or ["nothing changed"]:
            self.stdout.write(line)
        version = registry.publish_safely()
        state = f"published as version {version}" if version else "not published yet: Redis is away"
        self.stdout.write(f"{len(entries)} entries, {state}")
