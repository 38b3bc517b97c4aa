"""Texts to token ids, safely from many threads: a `tokenizers` object that nothing changes after it was made.

Truncation and padding are state of such an object, so it gets neither: texts are read whole and cut here, with the
special tokens kept. Strings that look like special tokens, typed by a user, are read as sentence-transformers reads
them: as the special token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, models, normalizers, pre_tokenizers, processors

from workers.layers.checkpoint import Checkpoint, read_json
from workers.weights.failures import CORRUPT, UNSUPPORTED, load_failed

_SAMPLES = ("a", "Two words.")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the model reads of one text, special tokens included."""

    ids: np.ndarray  # int32
    whole: int  # how many there were before the cut

    @property
    def is_truncated(self) -> bool:
        return len(self.ids) < self.whole


class TextTokenizer:
    """The tokenizer of one checkpoint; immutable, so thread-safe. Raises ModelLoadFailed when it cannot be made."""

    def __init__(self, model: str, checkpoint: Checkpoint) -> None:
        self.limit = checkpoint.max_tokens
        self.vocabulary = checkpoint.config.get("vocab_size")  # rows of the embedding table
        settings = read_json(model, checkpoint.folder / "tokenizer_config.json", {})
        self._keeps_end = settings.get("truncation_side") == "left"
        self._tokenizer = _made(model, checkpoint, settings)
        self._prefix, self._suffix = _wrapping(model, self._tokenizer)
        self.specials = np.array(sorted({*self._prefix, *self._suffix}), np.int32)
        if self.vocabulary is None:
            self.vocabulary = self._tokenizer.get_vocab_size()
        if self.limit <= len(self._prefix) + len(self._suffix):
            raise load_failed(model, UNSUPPORTED, f"a limit of {self.limit} tokens leaves no room for text")

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text without special tokens, however many they are."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def spell(self, ids: Sequence[int]) -> str:
        """The text that ids of the vocabulary stand for, special tokens as they are written."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def take_literally(self) -> None:
        """From now on special tokens that a text spells are text, and order nothing. Not for threads."""
        self._tokenizer.encode_special_tokens = True

    def take_whole(self, spellings: Sequence[str]) -> None:
        """From now on each of these, or else its first word, is one token if the vocabulary has it. Not for threads.

        A marker like `[unused0]` that was put in as an id in training would be read in pieces otherwise.
        """
        for spelling in spellings:
            known = [name for name in (spelling, spelling.split(None, 1)[0]) if self.id_of(name) is not None]
            if known and self._tokenizer.encode(known[0], add_special_tokens=False).tokens != known[:1]:
                self._tokenizer.add_special_tokens([AddedToken(known[0], normalized=False, special=True)])

    def id_of(self, token: str) -> int | None:
        """None for a token that the vocabulary lacks."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def read_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Ids and token types of two texts joined, special tokens included, however many they are."""
        encoding = self._tokenizer.encode(first, second)
        return encoding.ids, encoding.type_ids

    def read_places(self, texts: Sequence[str]) -> list[Encoding]:
        """As `read`, with the place of each token in its text."""
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)

    @property
    def room(self) -> int:
        """Tokens of text that fit between the special ones."""
        return self.limit - len(self._prefix) - len(self._suffix)

    @property
    def lead(self) -> int:
        """How many special tokens stand before a text."""
        return len(self._prefix)

    @property
    def unknown(self) -> str | None:
        """How a token that the vocabulary lacks is spelled."""
        name: str | None = getattr(self._tokenizer.model, "unk_token", None)
        return name

    @property
    def marks_pieces(self) -> bool:
        """Whether tokens that go on a word say so in their own spelling, as `##ing` does."""
        return bool(getattr(self._tokenizer.model, "continuing_subword_prefix", None))

    def wrap(self, content: Sequence[int]) -> Tokens:
        """Cut to the limit and put the special tokens around."""
        kept = content
        if len(content) > self.room:
            kept = content[-self.room :] if self._keeps_end else content[: self.room]
        ids = np.array([*self._prefix, *kept, *self._suffix], np.int32)
        return Tokens(ids, len(content) + len(self._prefix) + len(self._suffix))

    def unwrap(self, ids: list[int]) -> list[int]:
        """Ids as a caller may send them, without the special tokens around if those are already there."""
        prefix, suffix = self._prefix, self._suffix
        if ids[: len(prefix)] != prefix or (not prefix and ids[len(ids) - len(suffix) :] != suffix):
            return ids
        end = len(ids) - len(suffix) if suffix and ids[len(ids) - len(suffix) :] == suffix else len(ids)
        return ids[len(prefix) : max(end, len(prefix))]

    def prompt_length(self, prompt: str) -> int:
        """How many tokens at a text's beginning are this prompt's, the leading special tokens counted with it."""
        return len(self._prefix) + len(self.read([prompt])[0])


def _made(model: str, checkpoint: Checkpoint, settings: dict[str, object]) -> Tokenizer:
    file, words = checkpoint.folder / "tokenizer.json", checkpoint.folder / "vocab.txt"
    if file.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust library raises plain Exception
            raise load_failed(model, CORRUPT, "its file tokenizer.json cannot be read") from error
    elif words.is_file():
        tokenizer = _word_pieces(words.read_text(encoding="utf-8").splitlines(), settings)
    else:
        raise load_failed(model, UNSUPPORTED, "its folder has neither tokenizer.json nor vocab.txt")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if checkpoint.lower_case:
        before = [normalizers.Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])]
        tokenizer.normalizer = normalizers.Sequence(before)
    return tokenizer


def _word_pieces(words: Sequence[str], settings: dict[str, object]) -> Tokenizer:
    """BERT's tokenizer from its vocabulary, for checkpoints older than tokenizer.json."""
    vocabulary = {word: index for index, word in enumerate(words)}
    special = {name: str(settings.get(f"{name}_token", f"[{name.upper()}]")) for name in ("unk", "cls", "sep", "pad")}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True) is not False,
        strip_accents=settings.get("strip_accents"),  # type: ignore[arg-type]  # a bool or null in the file
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True) is not False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        (special["sep"], vocabulary[special["sep"]]), (special["cls"], vocabulary[special["cls"]])
    )
    known = [token for token in [*special.values(), "[MASK]"] if token in vocabulary]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in known])
    return tokenizer


def _wrapping(model: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens before and behind a single text."""
    found = set()
    for sample in _SAMPLES:
        bare = tokenizer.encode(sample, add_special_tokens=False).ids
        full = tokenizer.encode(sample).ids
        starts = [at for at in range(len(full) - len(bare) + 1) if full[at : at + len(bare)] == bare]
        if not bare or not starts:
            raise load_failed(model, UNSUPPORTED, "its tokenizer changes a text's tokens when it adds special ones")
        found.add((tuple(full[: starts[0]]), tuple(full[starts[0] + len(bare) :])))
    if len(found) != 1:
        raise load_failed(model, UNSUPPORTED, "its tokenizer's special tokens depend on the text")
    prefix, suffix = found.pop()
    return list(prefix), list(suffix)
