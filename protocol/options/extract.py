"""The options of `extract`. A model that does not read one of them refuses it; see `families.refuse_unread`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import InvalidInput
from protocol.options import reading
from protocol.options.reading import OVERFLOW_ALIASES, Context, Vocabulary, shown
from protocol.spec import ModelSpec

LONG_TEXTS = ("window", "truncate", "error")
MAX_LABELS = 1000
MAX_LABEL_CHARACTERS = 1024
MAX_SCHEMA_DEPTH = 128
MAX_SCHEMA_VALUES = 100_000
MAX_PAGES = 100_000


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """What to look for and how. None: not given, so as the model does by itself."""

    labels: tuple[str, ...] | None = None  # kinds of entities or objects, or classes
    output_schema: Mapping[str, Any] | None = None  # the structure wanted, in the model's own or JSON Schema's words
    instruction: str | None = None
    task: str | None = None  # of models that do several
    threshold: float | None = None  # least score
    flat: bool | None = None  # True: no two spans overlap
    multi_label: bool | None = None  # several classes of one item, several labels of one span
    top_k: int | None = None  # most classes of one item
    language: str | None = None
    timestamps: bool | None = None  # True: when what was said was said
    pages: tuple[int, int] | None = None  # first and last of a document, from 1
    max_new_tokens: int | None = None
    overflow: str | None = None  # of LONG_TEXTS; None: window

    def to_wire(self) -> dict[str, Any]:
        """What was given."""
        wire = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in wire.items()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ExtractOptions":
        """Raises TypeError on a key that is not an option."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in wire.items()
        }
        return cls(**fields)


def parse_extract_options(
    raw: Mapping[str, Any],
    spec: ModelSpec,
    defaults: Mapping[str, Any] | None = None,
    paths: Mapping[str, str] | None = None,
) -> ExtractOptions:
    """See `reading.read`."""
    return ExtractOptions.from_wire(reading.read(EXTRACT, raw, spec, defaults, paths))


def _labels(value: Any, context: Context) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_LABELS:
        raise InvalidInput(f"must be a list of 1 to {MAX_LABELS} labels, not {shown(value) if value else 'empty'}")
    for index, label in enumerate(value):
        if not isinstance(label, str) or not label.strip() or len(label) > MAX_LABEL_CHARACTERS:
            raise InvalidInput(f"label {index} must be 1 to {MAX_LABEL_CHARACTERS} characters, not {shown(label)}")
        reading.text(label, context)
    return tuple(dict.fromkeys(value))


def _schema(value: Any, context: Context) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise InvalidInput(f"must be a map that describes the structure, not {shown(value) if value else 'empty'}")
    level: list[Any] = [value]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if depth > MAX_SCHEMA_DEPTH or count > MAX_SCHEMA_VALUES:
            raise InvalidInput(f"may be {MAX_SCHEMA_DEPTH} levels deep and hold {MAX_SCHEMA_VALUES} values")
        level = [inner for outer in level for inner in _inside(outer)]
    return value


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        if not all(isinstance(key, str) and reading.is_unicode(key) for key in value):
            raise InvalidInput("may have strings as keys only")
        return list(value.values())
    if isinstance(value, list):
        return value
    if value is not None and not isinstance(value, str | bool | int | float):
        raise InvalidInput(f"may hold what JSON can, not {shown(value)}")
    return []


def _pages(value: Any, context: Context) -> tuple[int, int]:
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(type(page) is int for page in value) or not 1 <= value[0] <= value[1] <= MAX_PAGES:
        raise InvalidInput(f"must be the first and the last page, as [1, 5], not {shown(value)}")
    return value[0], value[1]


EXTRACT = Vocabulary(
    "extract",
    {
        "labels": _labels,
        "output_schema": _schema,
        "instruction": reading.text,
        "task": reading.text,
        "threshold": reading.share,
        "flat": reading.flag,
        "multi_label": reading.flag,
        "top_k": reading.whole_number(1, MAX_LABELS),
        "language": reading.text,
        "timestamps": reading.flag,
        "pages": _pages,
        "max_new_tokens": reading.whole_number(1, 1 << 20),
        "overflow": reading.choice(*LONG_TEXTS, aliases=OVERFLOW_ALIASES),
    },
    {"overflow_policy": "overflow", "flat_ner": "flat", "page_range": "pages"},
)
