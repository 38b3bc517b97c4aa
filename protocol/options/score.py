"""The options of `score`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.options import reading
from protocol.options.encode import OVERFLOWS
from protocol.options.reading import OVERFLOW_ALIASES, Vocabulary
from protocol.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """How to score pairs of the query and each item."""

    instruction: str | None = None
    normalize: bool | None = None  # True: 0 to 1; False: the model's own number; None: as the checkpoint says
    overflow: str = "truncate"

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ScoreOptions":
        """Raises TypeError on a key that is not an option."""
        return cls(**wire)


def parse_score_options(
    raw: Mapping[str, Any],
    spec: ModelSpec,
    defaults: Mapping[str, Any] | None = None,
    paths: Mapping[str, str] | None = None,
) -> ScoreOptions:
    """See `reading.read`."""
    return ScoreOptions(**reading.read(SCORE, raw, spec, defaults, paths))


SCORE = Vocabulary(
    "score",
    {
        "instruction": reading.text,
        "normalize": reading.flag,
        "overflow": reading.choice(*OVERFLOWS, aliases=OVERFLOW_ALIASES),
    },
    {"overflow_policy": "overflow"},
)
