"""Strict reading of plain documents: readers turn one value into its type, or say what they expected instead."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

from protocol.options import is_unicode

Reader = Callable[[Any], Any]

# What JSON, MessagePack and every database can hold alike
LARGEST = (1 << 53) - 1
DEEPEST = 32


class WrongValue(ValueError):
    """One or more problems, each with the place inside the value where it was met ("" = the value itself)."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(str(problems))
        self.problems = list(problems)


def wrong(expected: str, value: Any) -> WrongValue:
    return WrongValue([("", f"expected {expected}, got {shown(value)}")])


def shown(value: Any) -> str:
    """A value as an error names it: its kind, and itself when it is short."""
    kind = {
        type(None): "nothing",
        bool: "true" if value else "false",
        list: "a list",
        dict: "a map",
    }.get(type(value))
    if kind is not None:
        return kind
    plain = repr(value)
    return plain if len(plain) <= 60 else plain[:60] + "…"


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong("text", value)
    if not _is_storable(value):
        raise WrongValue([("", "holds a character that cannot be stored: a zero byte or half of a surrogate pair")])
    return value


def _is_storable(value: str) -> bool:
    return "\0" not in value and is_unicode(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong("true or false", value)
    return value


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong("a whole number of at least 1", value)
    if value > LARGEST:
        raise wrong(f"at most {LARGEST}", value)
    return value


def json_value(value: Any, deepest: int = DEEPEST) -> Any:
    """Anything that JSON can hold; YAML also makes dates, sets, infinities and keys that are not text."""
    if not deepest:
        raise WrongValue([("", f"is nested more than {DEEPEST} deep")])
    inner = partial(json_value, deepest=deepest - 1)
    match value:
        case list():
            return _each(inner, list(enumerate(value)), "[{}]")
        case dict():
            for key in value:
                if not isinstance(key, str) or not _is_storable(key):
                    raise wrong("text as key", key)
            return dict(zip(value, _each(inner, list(value.items()), "{}"), strict=True))
        case None | bool():
            return value
        case str() if not value or _is_storable(value):
            return value
        case int() | float() if abs(value) <= LARGEST:
            return value
        case float() if isfinite(value):
            return value
    raise wrong("text, a number, true, false, a list or a map", value)


def matching(match: Callable[[str], object], expected: str) -> Reader:
    """Text for which `match` finds something."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not match(value) or not _is_storable(value):
            raise wrong(expected, value)
        return value

    return read


def one_of(options: Sequence[str]) -> Reader:
    def read(value: Any) -> str:
        if value not in options:
            raise wrong(f"one of {', '.join(options)}", value)
        return str(value)

    return read


def optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def several(reader: Reader) -> Reader:
    """A list without repetitions, as a tuple."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong("a list", value)
        items = _each(reader, list(enumerate(value)), "[{}]")
        if len(set(items)) < len(items):
            repeated = next(item for item in items if items.count(item) > 1)
            raise WrongValue([("", f"{shown(repeated)} stands there twice")])
        return tuple(items)

    return read


def mapping(key_reader: Reader, reader: Reader) -> Reader:
    """A map whose keys are data."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong("a map", value)
        keys = [key_reader(key) for key in value]
        return dict(zip(keys, _each(reader, list(value.items()), "{}"), strict=True))

    return read


def record(fields: Mapping[str, Reader], required: Sequence[str] = ()) -> Reader:
    """A map whose keys are the names in `fields`; any other key is an error that suggests the nearest."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong("a map", value)
        problems = [("", unknown(key, fields)) for key in value if key not in fields]
        problems += [("", f"{key!r} is missing") for key in required if key not in value]
        found: dict[str, Any] = {}
        for key, reader in fields.items():
            if key in value:
                try:
                    found[key] = reader(value[key])
                except WrongValue as error:
                    problems += [(_joined(key, place), what) for place, what in error.problems]
        if problems:
            raise WrongValue(problems)
        return found

    return read


def unknown(key: Any, known: Mapping[str, Any] | Sequence[str]) -> str:
    near = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"
    return f"unknown key {shown(key)}; {hint}"


def _each(reader: Reader, entries: Sequence[tuple[Any, Any]], place: str) -> list[Any]:
    """Read every value, so that all problems are told at once."""
    read, problems = [], []
    for key, value in entries:
        try:
            read.append(reader(value))
        except WrongValue as error:
            problems += [(_joined(place.format(key), inner), what) for inner, what in error.problems]
    if problems:
        raise WrongValue(problems)
    return read


def _joined(outer: str, inner: str) -> str:
    if not inner:
        return outer
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"
