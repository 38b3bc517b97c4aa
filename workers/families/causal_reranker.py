"""Rerankers that are language models: asked in words whether a text answers the query, and read at their next token.

The score is what the model gives the word for yes against the word for no: as a share of the two, or with `normalize:
false` as the difference of their logits. What a caller writes never counts as a control token of the chat.

The entry's `load:` may say `format`, how the model was taught to be asked (qwen3 or mxbai), and `instruction`, what
is asked where the caller says nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import ScoreOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import checkpoint, labelled, parking, transformer
from workers.layers.checkpoint import Checkpoint
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

LOAD_OPTIONS = ("dtype", "format", "instruction")
_TASKS = ("text-generation", checkpoint.FEATURES)  # sentence-transformers' words for it
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Format:
    """How a model is asked. Pieces are tokenized each by itself, as the model's authors do."""

    before: str
    pair: tuple[str, ...]
    instructed: tuple[str, ...]  # the pair where there is an instruction
    behind: tuple[str, ...]
    yes: str
    no: str
    instruction: str | None = None


_CHAT = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
_QWEN3_PAIR = ("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {text}",)
FORMATS = {
    "qwen3": Format(
        before=_CHAT.format(
            system="Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
            'Note that the answer can only be "yes" or "no".'
        ),
        pair=_QWEN3_PAIR,
        instructed=_QWEN3_PAIR,
        behind=(f"{_ANSWER}<think>\n\n</think>\n\n",),
        yes="yes",
        no="no",
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    "mxbai": Format(
        before=_CHAT.format(system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        pair=("query: {query}", "\n", "document: {text}"),
        instructed=("instruction: {instruction}\nquery: {query}", "\n", "document: {text}"),
        behind=(
            "\n",
            "You are a search relevance expert who evaluates how well documents match search queries. For each "
            "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
            "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
            _ANSWER,
        ),
        yes="1",
        no="0",
    ),
}


class AskingPreparer:
    """A query and texts in, one score each out. No option changes how a forward runs."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = read_checkpoint(spec, folder)
        self._format = FORMATS[spec.load.get("format", "qwen3")]
        self._instruction = spec.load.get("instruction", self._format.instruction)
        self._tokenizer = TextTokenizer(spec.model, about)
        self._before = self._tokenizer.read([self._format.before])[0]
        self._behind = [token for ids in self._tokenizer.read(self._format.behind) for token in ids]
        self._tokenizer.take_literally()
        self._limit = about.max_tokens
        self._room = self._limit - len(self._before) - len(self._behind)
        if self._room < 1:
            raise load_failed(spec.model, UNSUPPORTED, f"a limit of {self._limit} tokens leaves no room for text")

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ScoreOptions.from_wire(payload.options)
        query = (payload.query or {}).get("text")
        if not isinstance(query, str):
            raise InvalidInput(f"model {self._model!r} reads text", param="query.text")
        instruction = self._instruction if wanted.instruction is None else wanted.instruction
        return [
            self._prepare(self._read(query, item["text"], instruction), wanted.overflow)
            if isinstance(item.get("text"), str)
            else InvalidInput(f"model {self._model!r} reads text", param="text")
            for item in payload.items
        ]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ScoreOptions.from_wire(options)
        how = labelled.BARE if wanted.normalize is False else labelled.SIGMOID
        return {"score": float(labelled.scores(self._model, outputs[0]["odds"], how)[0])}

    def _read(self, query: str, text: str, instruction: str | None) -> list[int]:
        pieces = self._format.pair if instruction is None else self._format.instructed
        said = [piece.format(instruction=instruction, query=query, text=text) for piece in pieces]
        return [token for ids in self._tokenizer.read(said) for token in ids]

    def _prepare(self, pair: list[int], overflow: str) -> Parts | ShoalError:
        is_cut = len(pair) > self._room
        if is_cut and overflow == "error":
            whole = len(pair) + self._limit - self._room
            return InputTooLong(
                f"query and text have {whole} tokens; model {self._model!r} reads at most {self._limit}",
                extra={"tokens": whole, "limit": self._limit},
            )
        ids = np.array([*self._before, *pair[: self._room], *self._behind], np.int32)
        return [Prepared({"ids": ids}, cost=len(ids), tokens=len(ids), truncated=is_cut)]


class AskedModel:
    """The model as loaded, without the rows of its head that nobody asks for."""

    def __init__(self, settled: Any, answers: Any, max_tokens: int) -> None:
        self.packed: bool = settled.forward.packed
        self.bytes = transformer.bytes_of(settled.model)
        self.host_copy = parking.TorchCopy.of(settled.model)
        self._settled = settled
        self._answers = answers  # the head's rows of yes and no, float32
        self._max_tokens = max_tokens

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        import torch

        from workers.layers.pooling import pool

        with torch.inference_mode():
            states = self._settled.forward.run([inputs["ids"] for inputs in batch])
            last = pool(("lasttoken",), states.tokens, states.lengths)
            yes, no = (last @ self._answers.T).unbind(1)
            odds = (yes - no).cpu().numpy()
        ordered = np.empty_like(odds)
        ordered[states.order] = odds
        return [{"odds": ordered[index : index + 1]} for index in range(len(batch))]

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self._settled.model).__name__,
            "dtype": transformer.dtype_of(self._settled.model),
            "max_tokens": self._max_tokens,
            "scores": "0 to 1",
            "packed": self.packed,
            "padded_because": self._settled.why,
            "reordered_linear": self._settled.reordered,
        }


def read_checkpoint(spec: ModelSpec, folder: Path | None) -> Checkpoint:
    """Raises ModelLoadFailed for an entry or a folder of another kind."""
    for name in spec.load:
        if name not in LOAD_OPTIONS:
            known = ", ".join(LOAD_OPTIONS)
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: {known}")
    asked = spec.load.get("format", "qwen3")
    if asked not in FORMATS:
        known = ", ".join(FORMATS)
        raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.format is {asked!r}, not one of {known}")
    shared = {name: value for name, value in spec.load.items() if name == "dtype"}
    found = checkpoint.read(
        replace(spec, load=shared), transformer.needed(spec, folder), tasks=_TASKS, own=("LogitScore",)
    )
    if not files.shards(found.folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return found


def answer_ids(spec: ModelSpec, about: Checkpoint) -> list[int]:
    """The tokens of yes and no: those of the folder's own LogitScore, else of the format's words."""
    for _, folder in about.modules:
        said = checkpoint.read_json(spec.model, folder / "config.json", {})
        if said.get("false_token_id") is None:
            raise load_failed(spec.model, UNSUPPORTED, "its LogitScore has no token for no")
        return [int(said["true_token_id"]), int(said["false_token_id"])]
    asked = FORMATS[spec.load.get("format", "qwen3")]
    read = TextTokenizer(spec.model, about).read([asked.yes, asked.no])
    if any(len(ids) != 1 for ids in read):
        raise load_failed(spec.model, UNSUPPORTED, f"its tokenizer has no token for {asked.yes!r} or {asked.no!r}")
    return [ids[0] for ids in read]


def read_answers(spec: ModelSpec, about: Checkpoint, body: Any) -> Any:
    """The head's rows of yes and no; they are the embeddings' where both are tied."""
    import torch
    from safetensors import safe_open

    rows = answer_ids(spec, about)
    for shard in files.shards(about.folder):
        if _HEAD in files.header(shard) and not body.config.tie_word_embeddings:
            with safe_open(shard, "pt") as opened:
                head = opened.get_slice(_HEAD)
                return torch.cat([head[row : row + 1] for row in rows]).float().to(body.device)
    if not body.config.tie_word_embeddings:
        raise load_failed(spec.model, UNSUPPORTED, f"its folder has no {_HEAD}")
    return body.get_input_embeddings().weight.detach()[rows].float()


def warm() -> None:
    import workers.layers.probe  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> AskingPreparer:
    return AskingPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    """Without the head, which is not kept."""
    about = read_checkpoint(spec, folder)
    headers = [files.header(shard) for shard in files.shards(about.folder)]
    heads: int = sum(prod(header[_HEAD]["shape"]) for header in headers if _HEAD in header)
    kept = 1 - heads / max(files.count_numbers(about.folder), 1)
    return int(transformer.estimate_bytes(spec, about.folder, device) * kept)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> AskedModel:
    from workers.layers import probe

    about = read_checkpoint(spec, folder)
    steps = iter((0.5, 0.8))
    report(0.1)
    settled = probe.settle(
        lambda: transformer.read(spec, about.folder, device, unused=()),
        about.config,
        about.max_tokens,
        about.position_offset,
        lambda: report(next(steps, 0.8)),
    )
    model = AskedModel(settled, read_answers(spec, about, settled.model), about.max_tokens)
    report(1.0)
    return model
