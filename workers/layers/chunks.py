"""Long texts in chunks, each to be encoded by itself: cut between words, of at most so many tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Characters `start` to `end` of its text, the last not included, and tokens `first` to `last`."""

    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Unit:
    """What no cut goes through: a word, or a piece of one that is too long."""

    start: int
    end: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first


def cut(text: str, encoding: Encoding, room: int, overlap: int) -> list[Chunk]:
    """Chunks of at most `room` tokens that cover all words of the text, in order; an empty text is one chunk.

    Neighbours share as many whole words as fit `overlap` tokens. A word of more than a quarter of the room may be cut.
    """
    units = _units(text, encoding, max(room // 4, 1))
    chunks: list[Chunk] = []
    start = 0
    while start < len(units):
        end = _end(units, start, room)
        chunks.append(Chunk(units[start].start, units[end - 1].end, units[start].first, units[end - 1].last))
        if end == len(units):
            break
        start = max(_back(units, end, overlap), start + 1)
    return chunks or [Chunk(0, len(text), 0, 0)]


def _end(units: Sequence[_Unit], start: int, room: int) -> int:
    """Behind the last unit that fits; at least one does."""
    end, size = start + 1, units[start].size
    while end < len(units) and size + units[end].size <= room:
        size += units[end].size
        end += 1
    return end


def _back(units: Sequence[_Unit], end: int, overlap: int) -> int:
    """The first of the units before `end` that fit `overlap` together."""
    size = 0
    while end > 0 and size + units[end - 1].size <= overlap:
        end -= 1
        size += units[end].size
    return end


def _units(text: str, encoding: Encoding, most: int) -> list[_Unit]:
    """Words with the tokens that begin in them; tokens of one character, as bytes are, stay together."""
    offsets = encoding.offsets
    units: list[_Unit] = []
    token = 0
    for word in _WORD.finditer(text):
        first = token
        while token < len(offsets) and offsets[token][0] < word.end():
            token += 1
        if token - first <= most:
            units.append(_Unit(word.start(), word.end(), first, token))
        else:
            units += _pieces(offsets, first, token, word.start(), word.end())
    return units


def _pieces(offsets: Sequence[tuple[int, int]], first: int, last: int, start: int, end: int) -> list[_Unit]:
    """One for each token that begins behind the end of the one before."""
    begins = [first]
    begins += [at for at in range(first + 1, last) if offsets[at][0] >= max(offsets[at - 1][1], start + 1)]
    places = [start, *(offsets[at][0] for at in begins[1:]), end]
    bounds = [*begins, last]
    return [_Unit(places[i], places[i + 1], bounds[i], bounds[i + 1]) for i in range(len(begins))]
