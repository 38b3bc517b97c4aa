"""Token classifiers: entities of the kinds a checkpoint was trained for, such as names or personal data.

What transformers' pipeline makes of a text, but that white space at an entity's ends is not part of it. Redaction
gives the text with each entity replaced by its label. Load options (`load:` of the entry), all optional:

    aggregation  simple: neighbouring tokens of one kind are an entity (default); first: whole words, each of the kind
                 of its first token
    dtype        of the weights on a GPU (float32, bfloat16, float16); a CPU always computes in float32
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding

from protocol.errors import InputTooLong, InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import checkpoint, parking, transformer
from workers.layers.redaction import REDACT, redact
from workers.layers.tokenizing import TextTokenizer
from workers.layers.windows import Entity, Found, Reach, Window, merge, plan
from workers.layers.words import Place
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"labels", "threshold", "task", "overflow"})
TASKS = ("entities", REDACT)
AGGREGATIONS = ("simple", "first")
OUTSIDE = "O"
_OVERLAP = 64  # tokens
_KINDS = ("token-classification", checkpoint.FEATURES)


@dataclass(frozen=True, slots=True)
class _Read:
    """One window: its tokens' places in the text, and which of them go on a word."""

    text: str
    places: Sequence[Place]
    goes_on: Sequence[bool]
    window: Window


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens that were given one label."""

    label: str
    scores: tuple[float, ...]
    start: int
    end: int

    @property
    def kind(self) -> str:
        return self.label[2:] if self.label.startswith(("B-", "I-")) else self.label


class TokenPreparer:
    """Texts in, entities out. `key` stays empty: no option changes how a forward runs."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, about)
        self._aggregation = spec.load.get("aggregation", AGGREGATIONS[0])
        named = about.config.get("id2label") or {}
        self._labels = {int(index): str(label) for index, label in named.items()}
        self._kinds = {_Piece(label, (), 0, 0).kind for label in self._labels.values()} - {OUTSIDE}

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        if wanted.task is not None and wanted.task not in TASKS:
            raise InvalidInput(f"must be one of {', '.join(TASKS)}, not {wanted.task!r}", param="options.task")
        for label in wanted.labels or ():
            if label not in self._kinds:
                known = ", ".join(sorted(self._kinds))
                raise InvalidInput(
                    f"model {self._model!r} knows no {label!r}; it knows {known}", param="options.labels"
                )
        texts = [item["text"] for item in payload.items if isinstance(item.get("text"), str)]
        encodings = iter(self._tokenizer.read_places(texts))
        return [
            self._prepare(item["text"], next(encodings), wanted.overflow)
            if isinstance(item.get("text"), str)
            else InvalidInput(f"model {self._model!r} reads text", param="text")
            for item in payload.items
        ]

    def _prepare(self, text: str, encoding: Encoding, overflow: str | None) -> Parts | ShoalError:
        room = self._tokenizer.room
        try:
            windows = plan(self._model, [1] * len(encoding.ids), Reach(room, room, _OVERLAP, "tokens"), overflow)
        except InputTooLong as error:
            return error
        goes_on = self._goes_on(text, encoding)
        return [self._part(text, encoding, goes_on, window) for window in windows]

    def _part(self, text: str, encoding: Encoding, goes_on: Sequence[bool], window: Window) -> Prepared:
        own = slice(window.start, window.end)
        ids = self._tokenizer.wrap(encoding.ids[own]).ids
        about = _Read(text, encoding.offsets[own], goes_on[own], window)
        return Prepared({"ids": ids}, cost=len(ids), tokens=len(ids), truncated=window.is_cut, about=about)

    def _goes_on(self, text: str, encoding: Encoding) -> list[bool]:
        """As transformers' pipeline tells: by the token's spelling, or else by the space before it."""
        known = [token != self._tokenizer.unknown for token in encoding.tokens]
        if self._tokenizer.marks_pieces:
            pieces = zip(encoding.tokens, encoding.offsets, known, strict=True)
            return [is_known and len(token) != end - start for token, (start, end), is_known in pieces]
        starts = zip(encoding.offsets, known, strict=True)
        return [is_known and start > 0 and " " not in text[start - 1 : start + 1] for (start, _), is_known in starts]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ExtractOptions.from_wire(options)
        found = [self._found(output, part.about) for output, part in zip(outputs, parts, strict=True)]
        least = wanted.threshold or 0.0
        entities = [
            entity
            for entity in (merge(found, flat=True, multi_label=False) if found else [])
            if entity["score"] >= least and (wanted.labels is None or entity["label"] in wanted.labels)
        ]
        if wanted.task != REDACT:
            return {"entities": entities}
        return {"entities": entities, "data": {"text": redact(parts[0].about.text if parts else "", entities)}}

    def _found(self, output: Mapping[str, Any], read: _Read) -> Found:
        if not np.isfinite(output["scores"]).all():
            raise NonFiniteOutput(f"model {self._model!r} gave a score that is no number")
        own = slice(self._tokenizer.lead, self._tokenizer.lead + len(read.places))
        labels = [self._labels[int(index)] for index in output["labels"][own]]
        tokens = [
            _Piece(label, (float(score),), start, end)
            for label, score, (start, end) in zip(labels, output["scores"][own], read.places, strict=True)
        ]
        pieces = _words(tokens, read.goes_on) if self._aggregation == "first" else tokens
        entities = [_entity(read.text, piece) for piece in _groups(pieces) if piece.kind != OUTSIDE]
        window = read.window
        return Found(
            [entity for entity in entities if entity["text"]],
            *_trimmed(read.text, read.places[0][0], read.places[-1][1]),
            window.is_first,
            window.is_last,
        )


def _words(tokens: Sequence[_Piece], goes_on: Sequence[bool]) -> list[_Piece]:
    """Each word with its first token's label and score."""
    words: list[_Piece] = []
    for token, is_later in zip(tokens, goes_on, strict=True):
        if is_later and words:
            words[-1] = replace(words[-1], end=token.end)
        else:
            words.append(token)
    return words


def _groups(pieces: Sequence[_Piece]) -> Iterator[_Piece]:
    """Neighbours of one kind together, a new group where a label begins with B."""
    group: _Piece | None = None
    for piece in pieces:
        if group is not None and piece.kind == group.kind and not piece.label.startswith("B-"):
            group = replace(group, scores=(*group.scores, *piece.scores), end=piece.end)
            continue
        if group is not None:
            yield group
        group = piece
    if group is not None:
        yield group


def _entity(text: str, group: _Piece) -> Entity:
    start, end = _trimmed(text, group.start, group.end)
    score = sum(group.scores) / len(group.scores)
    return {"text": text[start:end], "label": group.kind, "score": score, "start": start, "end": end}


def _trimmed(text: str, start: int, end: int) -> Place:
    """Without the white space that some tokenizers count to the word behind it."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


class TokenClassifier:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(self, tagger: Any) -> None:
        self._tagger = tagger
        self.packed: bool = tagger.way.packed
        self.bytes: int = tagger.way.bytes
        self.host_copy = parking.TorchCopy.of(*tagger.way.modules)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        tagged = self._tagger.tag([inputs["ids"] for inputs in batch])
        return [{"labels": labels, "scores": scores} for labels, scores in tagged]

    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._tagger.facts()
        return facts


def read(spec: ModelSpec, folder: Path) -> checkpoint.Checkpoint:
    """Raises ModelLoadFailed for what the family does not read."""
    load = dict(spec.load)
    aggregation = load.pop("aggregation", AGGREGATIONS[0])
    if aggregation not in AGGREGATIONS:
        wanted = ", ".join(AGGREGATIONS)
        raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.aggregation is {aggregation!r}, not of {wanted}")
    about = checkpoint.read(replace(spec, load=load), folder, tasks=_KINDS, own=())
    if not files.shards(about.folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    if not about.config.get("id2label"):
        raise load_failed(spec.model, UNSUPPORTED, "its config.json names no labels")
    return about


def warm() -> None:
    import workers.layers.tagging  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> TokenPreparer:
    return TokenPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, read(spec, transformer.needed(spec, folder)).folder, device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> TokenClassifier:
    from workers.layers import tagging

    report(0.1)
    model = TokenClassifier(tagging.load(spec, read(spec, transformer.needed(spec, folder)), device, report))
    report(1.0)
    return model
