"""The options of `encode`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import InvalidInput
from protocol.options import reading
from protocol.options.reading import OVERFLOW_ALIASES, Context, Vocabulary, shown
from protocol.spec import ModelSpec

OUTPUTS = ("dense", "sparse", "multivector")
DTYPES = ("float32", "float16", "int8", "uint8", "binary")
OVERFLOWS = ("truncate", "error")


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How to encode: only `output_types`, `is_query`, `instruction`, `prompt` and `chunk` change the forward."""

    output_types: tuple[str, ...] = ("dense",)
    output_dtype: str = "float32"
    is_query: bool | None = None  # None: the model's default prompt; True/False: its query or document prompt
    prompt: str | None = None  # literal text put before the input; "" turns the model's prompts off
    instruction: str | None = None
    dimensions: int | None = None  # Matryoshka width
    normalize: bool | None = None  # None: as the checkpoint says
    overflow: str = "truncate"
    chunk: Mapping[str, int] | None = None  # a vector for each stretch of a text, instead of one for its beginning
    muvera: Mapping[str, int] | None = None  # how a multi-vector model's vectors become the one that `dense` asks for
    smve: Mapping[str, int] | None = None  # the same for `sparse`

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
    """See `reading.read`."""
    fields = reading.read(ENCODE, raw, spec, defaults, paths)
    if "output_types" not in fields and "dense" not in spec.outputs:
        folded = [output for output, option in _FOLDS.items() if fields.get(option) is not None]
        fields["output_types"] = tuple(folded) or spec.outputs
    return EncodeOptions.from_wire(fields)


def _output_types(value: Any, context: Context) -> tuple[str, ...]:
    """Of a text's many vectors one can be made, where its option is asked for too."""
    asked = {**context.defaults, **context.given}
    own = tuple(context.defaults.get("output_types", context.spec.outputs))
    offered = tuple(dict.fromkeys((*own, *(output for output in _FOLDS if asked.get(_FOLDS[output]) is not None))))
    if not isinstance(value, list | tuple) or not value:
        raise InvalidInput(f"must be a list of outputs, not {shown(value)}")
    for output in value:
        if not isinstance(output, str) or output not in offered:
            gives = ", ".join(offered)
            raise InvalidInput(f"{shown(output)} is not an output of {context.spec.model!r}, which gives {gives}")
    return tuple(dict.fromkeys(value))


def _dimensions(value: Any, context: Context) -> int | None:
    """None for the model's own width, so that asking for it changes nothing."""
    spec = context.spec
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


_LEAST_CHUNK = 16


def _chunk(value: Any, context: Context) -> dict[str, int]:
    """`{}` or true for chunks as long as the model reads."""
    given = {} if value is True else value
    if not isinstance(given, Mapping):
        raise InvalidInput(f"must be a map, not {shown(value)}")
    for name, number in given.items():
        if name not in ("tokens", "overlap"):
            raise InvalidInput(f"has no {reading.shown_key(name)!r}; it has tokens, overlap")
        least, most = (_LEAST_CHUNK, context.spec.max_tokens) if name == "tokens" else (0, given.get("tokens"))
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InvalidInput(f"{name} must be a whole number of at least {least}, not {shown(number)}")
        if isinstance(most, int) and number > (most if name == "tokens" else most // 2):
            most_of = f"the {most} tokens that the model reads" if name == "tokens" else "half of tokens"
            raise InvalidInput(f"{name} must be at most {most_of}, not {number}")
    return dict(given)


# What one vector is made of many by → the least and the most of each number that shapes it
_MUVERA = {"repetitions": (1, 100), "planes": (1, 10), "dims": (16, 65_536)}
_MOST_PARTS = 10_240  # repetitions times 2**planes: each takes numbers as wide as a vector by token
_SMVE = {"width": (256, 131_072), "k": (1, 256)}
# Which output one of these options makes
_FOLDS = {"dense": "muvera", "sparse": "smve"}


def _shape(bounds: Mapping[str, tuple[int, int]]) -> reading.Reader:
    """`{}` or true for the usual shape."""

    def read_shape(value: Any, context: Context) -> dict[str, int]:
        if "multivector" not in context.spec.outputs:
            raise InvalidInput(f"{context.spec.model!r} gives no vectors by token that could be made one")
        given = {} if value is True else value
        if not isinstance(given, Mapping):
            raise InvalidInput(f"must be a map, not {shown(value)}")
        for name, number in given.items():
            if name not in bounds:
                raise InvalidInput(f"has no {reading.shown_key(name)!r}; it has {', '.join(bounds)}")
            least, most = bounds[name]
            if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
                raise InvalidInput(f"{name} must be a whole number from {least} to {most}, not {shown(number)}")
        return dict(given)

    return read_shape


def _muvera(value: Any, context: Context) -> dict[str, int]:
    shape: dict[str, int] = _shape(_MUVERA)(value, context)
    parts = shape.get("repetitions", 40) << shape.get("planes", 6)
    if parts > _MOST_PARTS:
        raise InvalidInput(f"repetitions times 2 to the planes must be at most {_MOST_PARTS:,}, not {parts:,}")
    return shape


ENCODE = Vocabulary(
    "encode",
    {
        "output_types": _output_types,
        "output_dtype": reading.choice(*DTYPES, aliases={"ubinary": "binary"}),
        "is_query": reading.flag,
        "prompt": reading.text,
        "instruction": reading.text,
        "dimensions": _dimensions,
        "normalize": reading.flag,
        "overflow": reading.choice(*OVERFLOWS, aliases=OVERFLOW_ALIASES),
        "chunk": _chunk,
        "muvera": _muvera,
        "smve": _shape(_SMVE),
    },
    {"overflow_policy": "overflow"},
)
