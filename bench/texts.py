"""Texts for measures: made of plain English words, the same on every machine for the same seed, all different."""

import math
import random
from collections.abc import Callable
from pathlib import Path

WORDS = (Path(__file__).parent / "words.txt").read_text().split()

TYPICAL_WORDS = 33  # median; with the spread below the mean is about 44 tokens
SPREAD = 0.65
LONGEST_TYPICAL = 400


def mixed(count: int, seed: int = 1) -> list[str]:
    """Texts of natural lengths: log-normal, from a few words to a few hundred."""
    source = random.Random(seed)
    return _distinct(count, source, lambda: min(_log_normal(source), LONGEST_TYPICAL))


def spread(count: int, longest: int = 2000, seed: int = 1) -> list[str]:
    """Texts of 1 to `longest` words, evenly on a logarithmic scale, both ends included."""
    source = random.Random(seed)
    drawn = _distinct(count - 1, source, lambda: round(math.exp(source.uniform(0, math.log(longest)))))
    return [*drawn, sentence(source, longest)]


def sentence(source: random.Random, words: int) -> str:
    return " ".join(source.choices(WORDS, k=words)).capitalize() + "."


def from_file(path: str) -> list[str]:
    """One text a line; empty lines do not count."""
    return [line for line in Path(path).read_text().splitlines() if line.strip()]


def _log_normal(source: random.Random) -> int:
    return max(1, round(source.lognormvariate(math.log(TYPICAL_WORDS), SPREAD)))


def _distinct(count: int, source: random.Random, draw_length: Callable[[], int]) -> list[str]:
    """A second text of one word may be the same as the first: then both length and words are drawn again."""
    seen: dict[str, None] = {}
    while len(seen) < count:
        seen[sentence(source, draw_length())] = None
    return list(seen)
