"""MUVERA: many vectors as one, so that one inner product stands for MaxSim.

Fixed dimensional encodings (Dhulipala et al., 2024, https://arxiv.org/abs/2405.19504): several times over, hyperplanes
drawn at random part space; a query's vectors are summed in each part, a document's averaged, and a part where a
document has none gets its nearest vector. A count sketch folds the whole to the width that is asked for. Encodings of
one shape and width of model can be compared with each other, and with no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

SEED = 42


@dataclass(frozen=True, slots=True)
class Shape:
    """How an encoding is made: `repetitions` partings of space into 2**`planes`, folded to `dims` numbers."""

    repetitions: int = 40
    planes: int = 6
    dims: int = 10_240

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Shape":
        """Raises TypeError on an unknown key."""
        return cls(**wire)


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """What chance decided for a shape: hyperplanes (repetitions, width, planes), and where each number is folded to."""

    planes: np.ndarray
    places: np.ndarray
    signs: np.ndarray


class Encodings:
    """Thread-safe; what is drawn at random is drawn once per shape, the same everywhere."""

    def __init__(self) -> None:
        self._drawn = lru_cache(maxsize=8)(_draw)

    def encode(self, rows: np.ndarray, shape: Shape, *, is_query: bool) -> np.ndarray:
        """One float32 vector of `shape.dims` numbers, or of all if there are fewer; `rows` are (tokens, width)."""
        width = rows.shape[1]
        drawn = self._drawn(shape, width)
        parts = 1 << shape.planes
        sides = (rows @ drawn.planes > 0).astype(np.int64)  # (repetitions, tokens, planes)
        inside = sides @ (1 << np.arange(shape.planes))
        blocks = np.zeros((shape.repetitions, parts, width), np.float32)
        for repetition in range(shape.repetitions):
            members = np.zeros((parts, len(rows)), np.float32)
            members[inside[repetition], np.arange(len(rows))] = 1
            blocks[repetition] = members @ rows
            if not is_query and len(rows):
                _average(blocks[repetition], members.sum(1), sides[repetition], rows)
        flat = blocks.reshape(-1)
        if shape.dims >= len(flat):
            return flat
        folded = np.bincount(drawn.places, weights=flat * drawn.signs, minlength=shape.dims)
        return folded.astype(np.float32)


def _average(block: np.ndarray, counts: np.ndarray, sides: np.ndarray, rows: np.ndarray) -> None:
    """Sums to means; a part without vectors gets the one whose sides differ least, the first of equals."""
    there = counts > 0
    block[there] /= counts[there, None]
    empty = np.flatnonzero(~there)
    if len(empty):
        wanted = (empty[:, None] >> np.arange(sides.shape[1])) & 1
        apart = (wanted[:, None, :] != sides[None]).sum(2)
        block[empty] = rows[apart.argmin(1)]


def _draw(shape: Shape, width: int) -> _Drawn:
    planes = [np.random.default_rng(SEED + at).normal(size=(width, shape.planes)) for at in range(shape.repetitions)]
    chance = np.random.default_rng(SEED)
    size = shape.repetitions * (width << shape.planes)
    places = chance.integers(0, shape.dims, size).astype(np.uint16)
    signs = chance.choice(np.array([-1, 1], np.int8), size)
    return _Drawn(np.stack(planes).astype(np.float32), places, signs)
