"""What keys used adds up by day."""

from datetime import UTC, date, datetime

import pytest

from catalog.models import ApiKey, Usage
from catalog.usage import Amount, record

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
EVENING = datetime(2026, 11, 30, 20, tzinfo=UTC)
TOMORROW = datetime(2026, 12, 1, 1, tzinfo=UTC)


def test_amounts_of_a_day_add_up() -> None:
    record({("abc", "org/model"): Amount(items=2, tokens=30)}, NOON)
    record({("abc", "org/model"): Amount(items=1, tokens=5)}, EVENING)

    row = Usage.objects.get()
    assert (row.key, row.model, row.day, row.items, row.tokens) == ("abc", "org/model", date(2026, 11, 30), 3, 35)


def test_days_models_and_keys_are_counted_apart() -> None:
    record({("abc", "a"): Amount(1, 1), ("abc", "b"): Amount(1, 1), ("", "a"): Amount(1, 1)}, NOON)
    record({("abc", "a"): Amount(1, 1)}, TOMORROW)

    assert Usage.objects.count() == 4


def test_a_used_key_says_when() -> None:
    used = ApiKey.objects.create(name="used", prefix="abc", digest="x")
    idle = ApiKey.objects.create(name="idle", prefix="def", digest="y")

    record({("abc", "org/model"): Amount(1, 1), ("", "org/model"): Amount(1, 1)}, NOON)

    used.refresh_from_db()
    idle.refresh_from_db()
    assert (used.last_used, idle.last_used) == (NOON, None)


def test_nothing_used_records_nothing() -> None:
    record({}, NOON)

    assert not Usage.objects.exists()
