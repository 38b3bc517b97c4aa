"""Pairs of texts to token ids: the special tokens around and between as the checkpoint's tokenizer puts them.

A pair that is too long is cut as the `tokenizers` library cuts it, token by token of two texts read once each: the
same query stands before many texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.layers.checkpoint import Checkpoint, read_json
from workers.layers.tokenizing import TextTokenizer
from workers.weights.failures import UNSUPPORTED, load_failed

_SAMPLES = (("a", "Two words."), ("Two words.", "a"))


@dataclass(frozen=True, slots=True)
class PairTokens:
    """What the model reads of one pair, special tokens included."""

    ids: np.ndarray  # int32
    types: np.ndarray | None  # int32; None for a model without token types
    whole: int  # how many there were before the cut

    @property
    def is_truncated(self) -> bool:
        return len(self.ids) < self.whole

    @property
    def inputs(self) -> dict[str, Any]:
        """Of a forward."""
        return {"ids": self.ids} if self.types is None else {"ids": self.ids, "types": self.types}


@dataclass(frozen=True, slots=True)
class _Template:
    """The special tokens before, between and behind, and the token types of the five stretches."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    types: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.before) + len(self.between) + len(self.behind)


class PairTokenizer:
    """The tokenizer of one checkpoint; immutable, so thread-safe. Raises ModelLoadFailed when it cannot be made."""

    def __init__(self, model: str, checkpoint: Checkpoint) -> None:
        self._texts = TextTokenizer(model, checkpoint)
        self.limit = self._texts.limit
        self.read = self._texts.read
        settings = read_json(model, checkpoint.folder / "tokenizer_config.json", {})
        self._keeps_end = settings.get("truncation_side") == "left"
        self._template = self._find_template(model)
        self._texts.take_literally()  # else a text could end itself and begin another
        named = "token_type_ids" in settings.get("model_input_names", ("token_type_ids",))
        self.has_types = named and int(checkpoint.config.get("type_vocab_size") or 0) > 1
        if self.room < 2:
            raise load_failed(model, UNSUPPORTED, f"a limit of {self.limit} tokens leaves no room for two texts")

    @property
    def room(self) -> int:
        """Tokens of the two texts together."""
        return self.limit - self._template.size

    def wrap(self, first: Sequence[int], second: Sequence[int]) -> PairTokens:
        """The longer one is cut first."""
        kept = longest_first(len(first), len(second), self.room)
        return self._join(first, second, *kept)

    def wrap_cutting_first(self, first: Sequence[int], second: Sequence[int]) -> PairTokens:
        """Only the first one is cut; the second one must fit."""
        return self._join(first, second, min(len(first), self.room - len(second)), len(second))

    def _join(self, first: Sequence[int], second: Sequence[int], one: int, other: int) -> PairTokens:
        template = self._template
        stretches = (
            template.before,
            self._cut(first, one),
            template.between,
            self._cut(second, other),
            template.behind,
        )
        ids = np.array([token for stretch in stretches for token in stretch], np.int32)
        types = self._types(one, other) if self.has_types else None
        return PairTokens(ids, types, len(first) + len(second) + template.size)

    def _cut(self, ids: Sequence[int], count: int) -> Sequence[int]:
        return ids[len(ids) - count :] if self._keeps_end else ids[:count]

    def _types(self, one: int, other: int) -> np.ndarray:
        before, first, between, second, behind = self._template.types
        return np.array([*before, *first * one, *between, *second * other, *behind], np.int32)

    def _find_template(self, model: str) -> _Template:
        """From what the tokenizer does to samples."""
        found = {self._template_of(model, *sample) for sample in _SAMPLES}
        if len(found) != 1:
            raise load_failed(model, UNSUPPORTED, "its tokenizer's special tokens depend on the texts of a pair")
        return found.pop()

    def _template_of(self, model: str, first: str, second: str) -> _Template:
        one, other = self.read([first, second])
        ids, types = self._texts.read_pair(first, second)
        start = _find(ids, one, 0)
        middle = start + len(one)
        rest = _find(ids, other, middle) if start >= 0 else -1
        if start < 0 or rest < 0 or not one or not other:
            raise load_failed(model, UNSUPPORTED, "its tokenizer changes the tokens of texts that it joins to a pair")
        end = rest + len(other)
        spans = ((0, start), (start, start + 1), (middle, rest), (rest, rest + 1), (end, len(ids)))
        return _Template(
            tuple(ids[:start]), tuple(ids[middle:rest]), tuple(ids[end:]), tuple(tuple(types[a:b]) for a, b in spans)
        )


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens stay of two texts, as the `tokenizers` library decides: short texts stay whole if they can."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room // 2 + room % 2
    return (shorter, longer) if first <= second else (longer, shorter)


def _find(ids: Sequence[int], part: Sequence[int], start: int) -> int:
    """Where `part` stands in `ids` at or behind `start`; -1 if nowhere."""
    places = range(start, len(ids) - len(part) + 1)
    return next((at for at in places if ids[at : at + len(part)] == part), -1)
