"""Adds up what keys used. Gateways count in memory and hand the sums over now and then, far from any request."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import F

from catalog.models import ApiKey, Usage


@dataclass(frozen=True, slots=True)
class Amount:
    items: int
    tokens: int


def record(amounts: Mapping[tuple[str, str], Amount], now: datetime) -> None:
    """Add what was used since the last time, by key prefix ("" = no key) and model, to the rows of today."""
    prefixes = {prefix for prefix, _ in amounts if prefix}
    with transaction.atomic():
        # In one order, so that two gateways updating the same rows wait for each other instead of locking up.
        for (prefix, model), amount in sorted(amounts.items(), key=lambda entry: entry[0]):
            _add(prefix, model, amount, now)
        ApiKey.objects.filter(prefix__in=prefixes).update(last_used=now)


def _add(prefix: str, model: str, amount: Amount, now: datetime) -> None:
    rows = Usage.objects.filter(key=prefix, model=model, day=now.date())
    added = {"items": F("items") + amount.items, "tokens": F("tokens") + amount.tokens}
    if rows.update(**added):
        return
    try:
        with transaction.atomic():
            Usage.objects.create(key=prefix, model=model, day=now.date(), items=amount.items, tokens=amount.tokens)
    except IntegrityError:  # another gateway was first
        rows.update(**added)
