"""Brings the database in line with the entry files. Idempotent, and blind to what administrators decided."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import transaction

from catalog.loader import Entry
from catalog.models import Pool, RegisteredModel

DEFAULT_POOL = "default"
_FROM_FILE = ("entry", *RegisteredModel.COPIED, "missing_since", "updated")


@dataclass(slots=True)
class Outcome:
    """What a sync changed, by model name; `refused` holds a sentence for each entry that could not be taken."""

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def lines(self, most: int | None = None) -> list[str]:
        """For people, one change a line; of what is added or updated more than `most` are counted only."""
        return [
            *_named_or_counted("added", self.added, most),
            *_named_or_counted("updated", self.updated, most),
            *(f"returned  {name}: its file is back" for name in self.returned),
            *(f"disabled  {name}: its file is gone" for name in self.vanished),
            *(f"refused   {sentence}" for sentence in self.refused),
        ]


def _named_or_counted(change: str, names: Sequence[str], most: int | None) -> list[str]:
    if most is not None and len(names) > most:
        return [f"{change:<9} {len(names)} models"]
    return [f"{change:<9} {name}" for name in names]


def sync(entries: Sequence[Entry], now: datetime) -> Outcome:
    """Take over all entries in one transaction. Saves in bulk, so the caller publishes the catalog afterwards."""
    outcome = Outcome()
    with transaction.atomic():
        _wait_for_other_syncs()
        _make_pools(entry.model.spec.pool for entry in entries)
        rows = {row.name: row for row in RegisteredModel.objects.all()}
        accepted = _without_conflicts(entries, rows.values(), outcome)
        _take_over(accepted, rows, now, outcome)
        _mark_vanished({entry.model.spec.model for entry in entries}, rows.values(), now, outcome)
    return outcome


def _wait_for_other_syncs() -> None:
    """Two gateways that start at once sync one after the other: the second finds nothing to do."""
    _make_pools([DEFAULT_POOL])
    Pool.objects.select_for_update().get(name=DEFAULT_POOL)


def _make_pools(names: Iterable[str]) -> None:
    Pool.objects.bulk_create([Pool(name=name) for name in sorted(set(names))], ignore_conflicts=True)


def _without_conflicts(entries: Sequence[Entry], rows: Iterable[RegisteredModel], outcome: Outcome) -> list[Entry]:
    """Leave out entries whose names were given to a model in the admin: what a person made is not taken away."""
    by_hand = {
        name: row.name
        for row in rows
        if row.source == RegisteredModel.Source.ADMIN
        for name in (row.name, *row.aliases)
    }
    accepted = []
    for entry in entries:
        taken = [name for name in (entry.model.spec.model, *entry.model.aliases) if name in by_hand]
        if taken:
            owner = by_hand[taken[0]]
            outcome.refused.append(f"{entry.file.name}: {taken[0]!r} names {owner}, which was added in the admin")
        else:
            accepted.append(entry)
    return accepted


def _take_over(entries: Iterable[Entry], rows: dict[str, RegisteredModel], now: datetime, outcome: Outcome) -> None:
    fresh, changed = [], []
    for entry in entries:
        row = rows.get(entry.model.spec.model)
        if row is None:
            row = RegisteredModel(source=RegisteredModel.Source.FILE)
            fresh.append(row)
            outcome.added.append(entry.model.spec.model)
        elif row.missing_since is not None:
            changed.append(row)
            outcome.returned.append(row.name)
        elif row.entry != entry.document:
            changed.append(row)
            outcome.updated.append(row.name)
        else:
            continue
        row.set_entry(entry.document)
        row.missing_since, row.updated = None, now
    RegisteredModel.objects.bulk_create(fresh)
    RegisteredModel.objects.bulk_update(changed, _FROM_FILE)


def _mark_vanished(names: set[str], rows: Iterable[RegisteredModel], now: datetime, outcome: Outcome) -> None:
    gone = [
        row
        for row in rows
        if row.source == RegisteredModel.Source.FILE and row.missing_since is None and row.name not in names
    ]
    for row in gone:
        row.missing_since = row.updated = now
        outcome.vanished.append(row.name)
    RegisteredModel.objects.bulk_update(gone, ("missing_since", "updated"))
