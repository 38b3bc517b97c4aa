"""How options are read where they enter: each by its reader, with the place the caller wrote in every error."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import InvalidInput
from protocol.spec import ModelSpec

PROFILE = "profile"  # picks the defaults of all others; whoever resolves the model's name reads it
OVERFLOW_ALIASES = {"default": "truncate", "truncate_text": "truncate"}

_KINDS: Mapping[type, str] = {dict: "a map", list: "a list", tuple: "a list", bytes: "bytes"}
_MAX_TEXT_CHARACTERS = 64 << 10


@dataclass(frozen=True, slots=True)
class Context:
    """What an option's meaning may depend on: the model, its profile's defaults, and what else the caller asks for."""

    spec: ModelSpec
    defaults: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


# Answers the option's value, None for one that changes nothing. Raises InvalidInput without naming the option.
Reader = Callable[[Any, Context], Any]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All options of one primitive; `aliases` are other names for some of them that callers know from elsewhere."""

    primitive: str
    readers: Mapping[str, Reader]
    aliases: Mapping[str, str] = field(default_factory=dict)


def read(
    vocabulary: Vocabulary,
    raw: Mapping[str, Any],
    spec: ModelSpec,
    defaults: Mapping[str, Any] | None = None,
    paths: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a caller's options mean for this model, on top of its profile's `defaults`; null counts as not given.

    `paths` says where the caller wrote an option, for error messages; `options.<name>` where it says nothing.
    Raises InvalidInput with that place as `param`.
    """
    known = {name: value for name, value in (defaults or {}).items() if value is not None}
    fields = {name: value for name, value in known.items() if name in vocabulary.readers}
    context = Context(spec, known, raw)
    for written, value in raw.items():
        name = vocabulary.aliases.get(written, written)
        if value is None or name == PROFILE:
            continue
        try:
            if name not in vocabulary.readers:
                raise InvalidInput(_unknown(written, vocabulary))
            fields[name] = vocabulary.readers[name](value, context)
        except InvalidInput as error:
            where = (paths or {}).get(written, f"options.{shown_key(written)}")
            raise InvalidInput(f"{where}: {error.message}", param=where) from None
    return fields


def parse_profile(raw: Mapping[str, Any], path: str = "options.profile") -> str | None:
    """The profile that the options ask for, if any."""
    value = raw.get(PROFILE)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidInput(f"{path} must be the name of a profile, not {shown(value)}", param=path)
    return value


def shown(value: Any) -> str:
    """A caller's value as an error message may repeat it: short, and only if it is no text of theirs."""
    if isinstance(value, bool | int | float) or value is None:
        return repr(value)[:40]
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 and value.isprintable() else f"a string of {len(value)} characters"
    return _KINDS.get(type(value), "a value of another kind")


def shown_key(key: Any) -> str:
    """A caller's key as part of a path, such as `params.options.dimensions`."""
    text = key if isinstance(key, str) else repr(key)
    return text if len(text) <= 60 and text.isprintable() else "…"


def is_unicode(text: str) -> bool:
    """False for a string with a lone surrogate, which JSON can escape but nothing can encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def choice(*allowed: str, aliases: Mapping[str, str] | None = None) -> Reader:
    """One of some words."""

    def read_choice(value: Any, context: Context) -> str:
        if isinstance(value, str):
            value = (aliases or {}).get(value, value)
            if value in allowed:
                return str(value)
        raise InvalidInput(f"must be one of {', '.join(allowed)}, not {shown(value)}")

    return read_choice


def whole_number(least: int, most: int) -> Reader:
    def read_number(value: Any, context: Context) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInput(f"must be a whole number from {least} to {most}, not {shown(value)}")
        return value

    return read_number


def flag(value: Any, context: Context) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"must be true or false, not {shown(value)}")
    return value


def share(value: Any, context: Context) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidInput(f"must be a number from 0 to 1, not {shown(value)}")
    return float(value)


def text(value: Any, context: Context) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"must be a string, not {shown(value)}")
    if not is_unicode(value):
        raise InvalidInput("holds half of a surrogate pair, which is not text")
    if len(value) > _MAX_TEXT_CHARACTERS:
        raise InvalidInput(f"has more than {_MAX_TEXT_CHARACTERS} characters")
    return value


def _unknown(name: Any, vocabulary: Vocabulary) -> str:
    words = [*vocabulary.readers, *vocabulary.aliases, PROFILE]
    near = difflib.get_close_matches(str(name)[:60], words, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(vocabulary.readers)}"
    return f"is not an option of {vocabulary.primitive}; {hint}"
