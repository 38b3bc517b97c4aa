"""Revokes an API key."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from catalog import issuing
from catalog.keys import MARK
from catalog.models import ApiKey


class Command(BaseCommand):
    help = "Refuse an API key from now on; gateways know within about a second."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("prefix", help="the part after sk-shoal-, as list_keys shows it")

    def handle(self, *args: Any, prefix: str, **options: Any) -> None:
        wanted = prefix.removeprefix(MARK).partition("-")[0]  # the whole key is welcome too
        row = ApiKey.objects.filter(prefix=wanted).first()
        if row is None:
            raise CommandError(f"There is no key with the prefix {wanted!r}; list_keys shows all.")
        issuing.revoke(row, timezone.now())
        self.stdout.write(f"revoked {row}")
