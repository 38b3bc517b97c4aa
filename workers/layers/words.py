"""Texts as words, with how many tokens a model's tokenizer makes of each. No torch; safe from many threads."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from workers.weights.failures import CORRUPT, load_failed

Place = tuple[int, int]  # first character and the one behind the last

_LETTERS_PER_TOKEN = 4  # of common tokenizers on common languages; errs towards more tokens


def split(pattern: re.Pattern[str], text: str) -> list[Place]:
    return [match.span() for match in pattern.finditer(text)]


class WordSizes:
    """Counts tokens with the folder's tokenizer.json; a folder without one gets an estimate from letters."""

    def __init__(self, model: str, folder: Path) -> None:
        file = folder / "tokenizer.json"
        self._tokenizer: Tokenizer | None = None
        if file.is_file():
            try:
                self._tokenizer = Tokenizer.from_file(str(file))
            except Exception as error:  # the Rust library raises plain Exception
                raise load_failed(model, CORRUPT, "its file tokenizer.json cannot be read") from error
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()

    @property
    def is_exact(self) -> bool:
        return self._tokenizer is not None

    def count(self, words: Sequence[str]) -> list[int]:
        """Tokens of each word, read as one sequence without special tokens; none for one that the tokenizer drops."""
        if self._tokenizer is None:
            return [1 + (len(word) - 1) // _LETTERS_PER_TOKEN for word in words]
        sizes = [0] * len(words)
        for word in self._tokenizer.encode(list(words), is_pretokenized=True, add_special_tokens=False).word_ids:
            if word is not None:
                sizes[word] += 1
        return sizes
