"""The options of each primitive, agreed on by every dialect and family: read where they enter, trusted after."""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.errors import InvalidInput
from protocol.options.encode import DTYPES, ENCODE, OUTPUTS, OVERFLOWS, EncodeOptions, parse_encode_options
from protocol.options.extract import EXTRACT, ExtractOptions, parse_extract_options
from protocol.options.reading import PROFILE, Vocabulary, is_unicode, parse_profile, shown, shown_key
from protocol.options.score import SCORE, ScoreOptions, parse_score_options
from protocol.spec import ModelSpec

__all__ = [
    "DTYPES",
    "OUTPUTS",
    "OVERFLOWS",
    "PROFILE",
    "VOCABULARIES",
    "EncodeOptions",
    "ExtractOptions",
    "ScoreOptions",
    "is_unicode",
    "parse_encode_options",
    "parse_extract_options",
    "parse_options",
    "parse_profile",
    "parse_score_options",
    "shown",
    "shown_key",
]

# A primitive that callers may use is one line in each.
VOCABULARIES: Mapping[str, Vocabulary] = {"encode": ENCODE, "score": SCORE, "extract": EXTRACT}
_PARSERS: Mapping[str, Callable[..., Any]] = {
    "encode": parse_encode_options,
    "score": parse_score_options,
    "extract": parse_extract_options,
}


def parse_options(
    primitive: str,
    raw: Mapping[str, Any],
    spec: ModelSpec,
    defaults: Mapping[str, Any] | None = None,
    paths: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A caller's options as they cross the broker (see `reading.read`). Raises InvalidInput."""
    if primitive not in spec.primitives or primitive not in _PARSERS:
        can = ", ".join(spec.primitives)
        raise InvalidInput(f"model {spec.model!r} does not {primitive}; it does: {can}", param="model")
    wire: dict[str, Any] = _PARSERS[primitive](raw, spec, defaults, paths).to_wire()
    return wire
