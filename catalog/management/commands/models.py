"""Lists the catalog as the database has it."""

from typing import Any

from django.core.management.base import BaseCommand

from catalog.models import RegisteredModel
from catalog.schema import EntryError
from catalog.tables import aligned


class Command(BaseCommand):
    help = "List the models: what they do, where they run, whether callers can use them."

    def handle(self, *args: Any, **options: Any) -> None:
        head = ("model", "primitives", "family", "pool", "state", "pinned")
        rows = [_cells(row) for row in RegisteredModel.objects.select_related("pool")]
        self.stdout.write(aligned([head, *rows]))


def _cells(row: RegisteredModel) -> tuple[str, ...]:
    try:
        model = row.effective()
    except EntryError:
        return (row.name, ",".join(row.primitives), row.family, "", "not valid", "")
    pinned = "pinned" if model.pinned else ""
    return (row.name, ",".join(row.primitives), row.family, model.spec.pool, _state(row), pinned)


def _state(row: RegisteredModel) -> str:
    if row.missing_since is not None:
        return "file is gone"
    return "enabled" if row.enabled else "disabled"
