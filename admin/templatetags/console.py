"""Filters that turn bytes, counts and moments into words a person reads at a glance."""

from datetime import UTC, datetime

from django import template

register = template.Library()

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@register.filter
def human_bytes(size: int) -> str:
    """1536 → "1.5 KiB"; one decimal below ten, none above."""
    amount = float(size)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.1f} {unit}" if amount < 9.95 and unit != "B" else f"{amount:.0f} {unit}"


@register.filter
def human_count(count: int) -> str:
    """12345 → "12 345", with thin spaces."""
    return f"{count:,}".replace(",", "\u202f")


@register.filter
def percent(share: float) -> str:
    return f"{share:.0%}"


@register.filter
def human_seconds(seconds: float) -> str:
    """Its largest unit alone: 11000 → "3 h"."""
    for span, unit in _SPANS:
        if seconds >= span:
            return f"{int(seconds // span)} {unit}"
    return "0 s"


@register.filter
def since(moment: float, now: float) -> str:
    """The time from `moment` to `now`."""
    return human_seconds(now - moment)


@register.filter
def ahead(seconds: float) -> str:
    """How a clock is off: -95 → "1 min behind"."""
    return f"{human_seconds(abs(seconds))} {'ahead' if seconds > 0 else 'behind'}"


@register.filter
def words(name: str) -> str:
    """A counter's key as words: "loads_failed" → "loads failed"."""
    return name.replace("_", " ")


@register.filter
def moment(unix: float) -> str:
    """A point in time, in UTC: "2026-01-31 17:05:09"."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S")
