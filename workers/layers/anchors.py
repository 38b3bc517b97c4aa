"""SMVE: many vectors as one sparse vector, so that an inverted index finds what MaxSim would.

Directions drawn at random stand in the space of a model's vectors; a token is described by the few that it is nearest
to, as topk-io's SMVE does (https://www.topk.io/blog/20260311-smve-multi-vector-retrieval). Where tokens of a document
share a direction the nearest of them counts, a query's add up: the inner product of the two then sums, over the query's
tokens, what they share with their best match. The directions are Shoal's own: vectors go together with those of the
same shape from Shoal, and with no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

SEED = 42
_AT_ONCE = 1 << 24  # similarities that are held together, 64 MB


@dataclass(frozen=True, slots=True)
class Shape:
    """`width` directions, of which the `k` nearest describe a token."""

    width: int = 65_536
    k: int = 32

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Shape":
        """Raises TypeError on an unknown key."""
        return cls(**wire)


@lru_cache(maxsize=2)
def directions(width: int, dims: int) -> np.ndarray:
    """(width, dims) float32 of unit length, the same everywhere."""
    drawn = np.random.default_rng(SEED).standard_normal((width, dims), np.float32)
    unit: np.ndarray = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


def nearest(rows: Any, drawn: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each token the places of its `k` nearest directions, int32, and how near, float32.

    `rows` and `drawn` are torch tensors of one device.
    """
    some = max(1, _AT_ONCE // len(drawn))
    found = [(part @ drawn.T).topk(min(k, len(drawn)), dim=1) for part in rows.split(some)]
    places = np.concatenate([part.indices.int().cpu().numpy() for part in found])
    return places, np.concatenate([part.values.float().cpu().numpy() for part in found])


def joined(places: np.ndarray, near: np.ndarray, is_query: bool) -> tuple[np.ndarray, np.ndarray]:
    """All tokens' directions as one sparse vector: places in ascending order, int32, and values above 0, float32."""
    words, at = np.unique(places.ravel(), return_inverse=True)
    values = np.zeros(len(words), np.float32)
    (np.add if is_query else np.maximum).at(values, at, near.ravel())
    return words[values > 0].astype(np.int32), values[values > 0]
