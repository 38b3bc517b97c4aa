"""Texts and token ids to what a text encoder reads: the right prompt in front, cut to length, special tokens around."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions
from workers.families import Parts, Prepared
from workers.layers import chunks
from workers.layers.checkpoint import Checkpoint
from workers.layers.tokenizing import TextTokenizer

MOST_CHUNKS = 4096  # of one item
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the names sentence-transformers looks for, in its order


class TextReader:
    """Half of the preparer of every family that encodes texts; thread-safe."""

    def __init__(self, model: str, checkpoint: Checkpoint) -> None:
        self._model = model
        self._checkpoint = checkpoint
        self.tokenizer = TextTokenizer(model, checkpoint)

    def read(self, payload: Payload) -> list[Parts | ShoalError]:
        """One part per item, its tokens as `ids`; with the option `chunk` one part for each, which `by_chunk` joins.

        Raises InvalidInput for a prompt that the model cannot have, or chunks.
        """
        wanted = EncodeOptions.from_wire(payload.options)
        prompt = self._prompt(wanted)
        if wanted.chunk is not None:
            return self._chunks(payload.items, prompt, wanted.chunk)
        contents = self._read(payload.items, prompt)
        skipped = self.tokenizer.prompt_length(prompt) if prompt and not self._checkpoint.include_prompt else 0
        return [
            content if isinstance(content, ShoalError) else self._prepare(content, skipped, wanted.overflow)
            for content in contents
        ]

    def _chunks(
        self, items: Sequence[Mapping[str, Any]], prompt: str, wanted: Mapping[str, int]
    ) -> list[Parts | ShoalError]:
        """Each chunk is read as its text by itself would be."""
        before = self.tokenizer.read([prompt])[0] if prompt else []
        most = wanted.get("tokens", self.tokenizer.limit)
        room = min(most, self.tokenizer.limit) - (self.tokenizer.limit - self.tokenizer.room) - len(before)
        overlap = wanted.get("overlap", 0)
        if room < 1 or most > self.tokenizer.limit or overlap > most // 2:
            wrong = (
                f"model {self._model!r} reads {self.tokenizer.limit} tokens, of which {len(before)} are its prompt; "
            )
            raise InvalidInput(f"{wrong}a chunk has at most these, and overlaps by half", param="options.chunk")
        return [self._chunked(item, prompt, before, room, min(overlap, room // 2)) for item in items]

    def _chunked(
        self, item: Mapping[str, Any], prompt: str, before: list[int], room: int, overlap: int
    ) -> Parts | ShoalError:
        text = item.get("text")
        if not isinstance(text, str):
            return InvalidInput(f"model {self._model!r} reads text in chunks, nothing else", param="text")
        [encoding] = self.tokenizer.read_places([text])
        found = chunks.cut(text, encoding, room, overlap)
        if len(found) > MOST_CHUNKS:
            wrong = f"the text has {len(found)} chunks; at most {MOST_CHUNKS} are made of one"
            return InputTooLong(wrong, extra={"chunks": len(found), "limit": MOST_CHUNKS}, param="text")
        contents = self.tokenizer.read([prompt + text[chunk.start : chunk.end] for chunk in found])
        skipped = self.tokenizer.prompt_length(prompt) if prompt and not self._checkpoint.include_prompt else 0
        parts = []
        for chunk, content in zip(found, contents, strict=True):
            if len(content) > room + len(before):  # cut off from its text it may be read in more tokens than in it
                content = [*before, *encoding.ids[chunk.first : chunk.last]]
            made = self._prepare(content, skipped, "truncate")
            assert isinstance(made, list)
            parts.append(replace(made[0], about={"start": chunk.start, "end": chunk.end}))
        return parts

    def _prompt(self, wanted: EncodeOptions) -> str:
        """What is put before every text: the caller's own prompt, an instruction, or one of the model's prompts."""
        if wanted.prompt is not None:
            return wanted.prompt
        if wanted.instruction is not None and wanted.is_query is not False:
            template = self._checkpoint.instruction_template
            if template is None:
                raise InvalidInput(
                    f"model {self._model!r} takes no instruction; put literal text before inputs with 'prompt'",
                    param="options.instruction",
                )
            return template.replace("{instruction}", wanted.instruction)
        prompts = self._checkpoint.prompts
        if wanted.is_query is None:
            return prompts.get(self._checkpoint.default_prompt or "", "")
        names = ("query",) if wanted.is_query else _DOCUMENT_PROMPTS
        return next((prompts[name] for name in names if name in prompts), "")

    def _read(self, items: Sequence[Mapping[str, Any]], prompt: str) -> list[list[int] | ShoalError]:
        """Each item's tokens without special ones; all texts are tokenized in one call."""
        texts = [prompt + item["text"] for item in items if isinstance(item.get("text"), str)]
        read = iter(self.tokenizer.read(texts))
        return [
            next(read) if isinstance(item.get("text"), str) else self._read_ids(item.get("token_ids"), prompt)
            for item in items
        ]

    def _read_ids(self, ids: Any, prompt: str) -> list[int] | ShoalError:
        """Ids of the model's own vocabulary, read as the text they stand for."""
        if not isinstance(ids, list | tuple):
            return InvalidInput(f"model {self._model!r} reads text", param="text")
        size = self.tokenizer.vocabulary
        for index, token in enumerate(ids):
            if not 0 <= token < size:
                return InvalidInput(f"token_ids[{index}] must be below {size}, not {token}", param="token_ids")
        before = self.tokenizer.read([prompt])[0] if prompt else []
        return [*before, *self.tokenizer.unwrap(list(ids))]

    def _prepare(self, content: list[int], skipped: int, overflow: str) -> Parts | ShoalError:
        tokens = self.tokenizer.wrap(content)
        if tokens.is_truncated and overflow == "error":
            return InputTooLong(
                f"the text has {tokens.whole} tokens; model {self._model!r} reads at most {self.tokenizer.limit}",
                extra={"tokens": tokens.whole, "limit": self.tokenizer.limit},
            )
        count = len(tokens.ids)
        inputs = {"ids": tokens.ids, "skipped": skipped} if skipped else {"ids": tokens.ids}
        return [Prepared(inputs, cost=count, tokens=count, truncated=tokens.is_truncated)]


def by_chunk(outputs: Sequence[Any], parts: Parts, finish: Callable[[Any, Prepared], dict[str, Any]]) -> dict[str, Any]:
    """An item's result: `finish` of its only part, or `chunks`, in order, each with where it stands in the text."""
    if parts[0].about is None:
        return finish(outputs[0], parts[0])
    found = [{**part.about, **finish(output, part)} for output, part in zip(outputs, parts, strict=True)]
    return {"chunks": found}
