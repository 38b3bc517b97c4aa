"""The options of `encode` that every dialect and family agree on, validated where they enter and trusted after."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import InvalidInput
from protocol.spec import ModelSpec

OUTPUTS = ("dense", "sparse", "multivector")
DTYPES = ("float32", "float16", "int8", "uint8", "binary")
OVERFLOWS = ("truncate", "error")

# Other words for the same that callers know from elsewhere
_DTYPE_ALIASES = {"ubinary": "binary"}
_OVERFLOW_ALIASES = {"default": "truncate", "truncate_text": "truncate"}
_NAME_ALIASES = {"overflow_policy": "overflow"}

_KINDS: Mapping[type, str] = {dict: "a map", list: "a list", tuple: "a list", bytes: "bytes"}

PROFILE = "profile"  # picks the defaults of all others; whoever resolves the model's name reads it


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How to encode: nothing here but `output_types`, `is_query`, `instruction` and `prompt` changes the forward."""

    output_types: tuple[str, ...] = ("dense",)
    output_dtype: str = "float32"
    is_query: bool | None = None  # None: the model's default prompt; True/False: its query or document prompt
    prompt: str | None = None  # literal text put before the input; "" turns the model's prompts off
    instruction: str | None = None
    dimensions: int | None = None  # Matryoshka width
    normalize: bool | None = None  # None: as the checkpoint says
    overflow: str = "truncate"

    def to_wire(self) -> dict[str, Any]:
        wire = {name: getattr(self, name) for name in self.__slots__}
        wire["output_types"] = list(self.output_types)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "EncodeOptions":
        """Raises TypeError on a key that is not an option."""
        return cls(**{**wire, "output_types": tuple(wire.get("output_types", ("dense",)))})


def parse_encode_options(
    raw: Mapping[str, Any],
    spec: ModelSpec,
    defaults: Mapping[str, Any] | None = None,
    paths: Mapping[str, str] | None = None,
) -> EncodeOptions:
    """What a caller's options mean for this model, on top of its profile's `defaults`; null counts as not given.

    `paths` says where the caller wrote an option, for error messages; `options.<name>` where it says nothing.
    Raises InvalidInput with that place as `param`.
    """
    given = {_NAME_ALIASES.get(name, name): (name, value) for name, value in raw.items() if value is not None}
    given.pop(PROFILE, None)
    fields = {name: value for name, value in (defaults or {}).items() if value is not None}
    offered = tuple(fields.get("output_types", spec.outputs))
    for name, (written, value) in given.items():
        try:
            if name not in _READERS:
                raise InvalidInput(_unknown(written))
            fields[name] = _READERS[name](value, spec, offered)
        except InvalidInput as error:
            where = (paths or {}).get(written, f"options.{shown_key(written)}")
            raise InvalidInput(f"{where}: {error.message}", param=where) from None
    if "output_types" not in fields and "dense" not in spec.outputs:
        fields["output_types"] = spec.outputs
    return EncodeOptions.from_wire(fields)


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


def _output_types(value: Any, spec: ModelSpec, offered: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise InvalidInput(f"must be a list of outputs, not {shown(value)}")
    for output in value:
        if not isinstance(output, str) or output not in offered:
            raise InvalidInput(f"{shown(output)} is not an output of {spec.model!r}, which gives {', '.join(offered)}")
    return tuple(dict.fromkeys(value))


def _output_dtype(value: Any, spec: ModelSpec, offered: tuple[str, ...]) -> str:
    return _one_of(value, DTYPES, _DTYPE_ALIASES)


def _overflow(value: Any, spec: ModelSpec, offered: tuple[str, ...]) -> str:
    return _one_of(value, OVERFLOWS, _OVERFLOW_ALIASES)


def _one_of(value: Any, allowed: tuple[str, ...], aliases: Mapping[str, str]) -> str:
    if isinstance(value, str):
        value = aliases.get(value, value)
        if value in allowed:
            return str(value)
    raise InvalidInput(f"must be one of {', '.join(allowed)}, not {shown(value)}")


def _flag(value: Any, spec: ModelSpec, offered: tuple[str, ...]) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"must be true or false, not {shown(value)}")
    return value


def _text(value: Any, spec: ModelSpec, offered: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"must be a string, not {shown(value)}")
    if not is_unicode(value):
        raise InvalidInput("holds half of a surrogate pair, which is not text")
    return value


def _dimensions(value: Any, spec: ModelSpec, offered: tuple[str, ...]) -> int | None:
    """None for the model's own width, so that asking for it changes nothing."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"must be a whole number of at least 1, not {shown(value)}")
    width = spec.dims.get("dense")
    if value == width:
        return None
    if width is not None and value > width:
        raise InvalidInput(f"{spec.model!r} has {width} dimensions, {shown(value)} is more than that")
    if not spec.matryoshka:
        raise InvalidInput(
            f"{spec.model!r} cannot shorten its vectors; it has {width or 'a fixed number of'} dimensions"
        )
    if value not in spec.matryoshka:
        widths = ", ".join(str(known) for known in sorted(spec.matryoshka))
        raise InvalidInput(f"{spec.model!r} can be cut to {widths} dimensions, not to {value}")
    return value


def is_unicode(text: str) -> bool:
    """False for a string with a lone surrogate, which JSON can escape but nothing can encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unknown(name: Any) -> str:
    near = difflib.get_close_matches(str(name)[:60], [*_READERS, *_NAME_ALIASES, PROFILE], n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_READERS)}"
    return f"is not an option of encode; {hint}"


_READERS: Mapping[str, Callable[[Any, ModelSpec, tuple[str, ...]], Any]] = {
    "output_types": _output_types,
    "output_dtype": _output_dtype,
    "is_query": _flag,
    "prompt": _text,
    "instruction": _text,
    "dimensions": _dimensions,
    "normalize": _flag,
    "overflow": _overflow,
}
