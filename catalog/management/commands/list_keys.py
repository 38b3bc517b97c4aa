"""Lists the API keys, without their secrets."""

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from catalog.models import ApiKey
from catalog.tables import aligned


class Command(BaseCommand):
    help = "List the API keys: prefix, name, state, what they may do and when they were used last."

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        rows = [
            (
                key.prefix,
                key.name,
                key.state(now),
                "admin" if key.is_admin else "",
                key.lane,
                ",".join(key.primitives) or "all",
                ",".join(key.allowed_models) or "all",
                f"{key.last_used:%Y-%m-%d %H:%M}" if key.last_used else "never",
            )
            for key in ApiKey.objects.all()
        ]
        head = ("prefix", "name", "state", "admin", "lane", "primitives", "models", "last used")
        self.stdout.write(aligned([head, *rows]))
