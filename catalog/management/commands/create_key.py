"""Makes an API key and shows it, this once."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from catalog import issuing, registry
from catalog.models import ApiKey
from protocol import names
from protocol.errors import ModelNotFound
from protocol.spec import PRIMITIVES


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


class Command(BaseCommand):
    help = "Make an API key. It is shown once and cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True, help="who or what uses it")
        parser.add_argument("--models", type=_words, default=[], help="only these models, separated by commas")
        parser.add_argument("--primitives", type=_words, default=[], help=f"only these, of {', '.join(PRIMITIVES)}")
        parser.add_argument("--lane", choices=names.LANES, default=names.LANES[0], help="where a call names none")
        parser.add_argument("--admin", action="store_true", help="may use the management API")
        parser.add_argument("--expires-days", type=int, help="refused after so many days")

    def handle(self, *args: Any, **options: Any) -> None:
        row = ApiKey(
            name=options["name"],
            allowed_models=self._model_ids(options["models"]),
            primitives=self._primitives(options["primitives"]),
            lane=options["lane"],
            is_admin=options["admin"],
            expires=self._expiry(options["expires_days"]),
        )
        text = issuing.issue(row)
        row.save()
        self.stderr.write(f"key {row.prefix} for {row.name!r}; this is the only time it is shown:")
        self.stdout.write(text)

    def _model_ids(self, wanted: list[str]) -> list[str]:
        """Aliases become ids, and a typing mistake would lock its caller out: both are settled here."""
        catalog = registry.build(version=0)
        try:
            return [catalog.resolve(name).model.spec.model for name in wanted]
        except ModelNotFound as error:
            raise CommandError(error.message) from None

    def _primitives(self, wanted: list[str]) -> list[str]:
        for name in wanted:
            if name not in PRIMITIVES:
                raise CommandError(f"{name!r} is not a primitive; there are {', '.join(PRIMITIVES)}.")
        return wanted

    def _expiry(self, days: int | None) -> Any:
        if days is None:
            return None
        if days < 1:
            raise CommandError("--expires-days must be at least 1.")
        return timezone.now() + timedelta(days=days)
