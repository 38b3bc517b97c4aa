"""GLiNER: entities of any kinds, named by the caller, from texts; span, token and bi-encoder checkpoints.

The preparer splits texts into words as the library does and counts tokens. The token ids are made in the engine, by
the library: it adds marker tokens to the tokenizer when it loads, and many checkpoints have no tokenizer.json at all.
Texts of one batch may have different labels, thresholds and rules: the library keeps them apart.
Load options (`load:` of the entry), all optional:

    tokenizers      hub id → revision of encoders whose tokenizer and config the checkpoint leaves to the hub
    merge_adjacent  true: neighbours of one label become one entity, as NuNER Zero needs
    dtype           of the weights on a GPU (float32, bfloat16, float16); a CPU always computes in float32
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import gliner_folder, parking, transformer
from workers.layers.redaction import REDACT, redact
from workers.layers.windows import Entity, Found, Reach, Window, merge, plan
from workers.layers.words import Place, WordSizes, split

OPTIONS = frozenset({"labels", "threshold", "flat", "multi_label", "task", "overflow"})
TASKS = ("entities", REDACT)
THRESHOLD = 0.5
_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")  # the library's own
_OVERLAP = 32  # words; more where entities may be wider


@dataclass(frozen=True, slots=True)
class _Read:
    """One window: which characters of which text each of its words has."""

    text: str
    places: Sequence[Place]
    window: Window


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one call looks for, ready for the engine."""

    inputs: Mapping[str, Any]
    prompt: int  # tokens in front of every window
    reach: Reach


class GlinerPreparer:
    """Texts in, entities out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._about = gliner_folder.read(spec, folder)
        self._sizes = WordSizes(spec.model, folder)
        self._merges_adjacent = bool(spec.load.get("merge_adjacent"))

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        if wanted.task is not None and wanted.task not in TASKS:
            raise InvalidInput(f"must be one of {', '.join(TASKS)}, not {wanted.task!r}", param="options.task")
        asked = self._asked(wanted)
        return [self._prepare(item, asked, wanted.overflow) for item in payload.items]

    def _asked(self, wanted: ExtractOptions) -> _Asked:
        if not wanted.labels:
            raise InvalidInput(f"model {self._model!r} needs the labels to look for", param="options.labels")
        for label in wanted.labels:
            if any(marker in label for marker in self._about.markers):
                raise InvalidInput(f"the label {label!r} has a marker of the model in it", param="options.labels")
        sizes = self._sizes.count(self._prompt(wanted.labels))
        if not all(sizes):
            raise InvalidInput("a label has no character that the model reads", param="options.labels")
        prompt = sum(sizes)
        room = self._about.limit - (0 if self._about.is_bi_encoder else prompt)
        if room < 1:
            raise InvalidInput(
                f"the labels have {prompt} tokens, which leaves no room for text: model {self._model!r} reads "
                f"{self._about.limit} at once",
                param="options.labels",
            )
        inputs = {
            "labels": list(wanted.labels),
            "threshold": THRESHOLD if wanted.threshold is None else wanted.threshold,
            "flat": wanted.flat is not False,
            "multi_label": bool(wanted.multi_label),
        }
        return _Asked(inputs, prompt, Reach(self._about.words, room, max(_OVERLAP, self._about.width)))

    def _prompt(self, labels: Sequence[str]) -> list[str]:
        if self._about.is_bi_encoder:
            return list(labels)
        entity, separator = self._about.markers
        return [*(word for label in labels for word in (entity, label)), separator]

    def _prepare(self, item: Mapping[str, Any], asked: _Asked, overflow: str | None) -> Parts | ShoalError:
        text = item.get("text")
        if not isinstance(text, str):
            return InvalidInput(f"model {self._model!r} reads text", param="text")
        places = split(_WORD, text)
        sizes = self._sizes.count([text[start:end] for start, end in places])
        try:
            windows = plan(self._model, sizes, asked.reach, overflow)
        except InputTooLong as error:
            return error
        return [self._part(text, places, sizes, window, asked) for window in windows]

    def _part(
        self, text: str, places: Sequence[Place], sizes: Sequence[int], window: Window, asked: _Asked
    ) -> Prepared:
        own = places[window.start : window.end]
        tokens = asked.prompt + sum(sizes[window.start : window.end])
        return Prepared(
            {"words": [text[start:end] for start, end in own], **asked.inputs},
            cost=tokens,
            tokens=tokens,
            truncated=window.is_cut,
            about=_Read(text, own, window),
        )

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        found = [self._found(output, part.about) for output, part in zip(outputs, parts, strict=True)]
        entities = merge(found, options.get("flat") is not False, bool(options.get("multi_label"))) if found else []
        if self._merges_adjacent and found:
            entities = _joined(parts[0].about.text, entities)
        if options.get("task") != REDACT:
            return {"entities": entities}
        return {"entities": entities, "data": {"text": redact(parts[0].about.text if parts else "", entities)}}

    def _found(self, output: Mapping[str, Any], read: _Read) -> Found:
        if output["read"] < len(read.places) and not read.window.is_cut:
            raise InputTooLong(
                f"model {self._model!r} read {output['read']} words of {len(read.places)}: with the labels they have "
                "more tokens than it takes; ask for fewer labels at once",
                param="options.labels",
            )
        entities = [_entity(read, *span) for span in output["spans"]]
        window = read.window
        return Found(entities, read.places[0][0], read.places[-1][1], window.is_first, window.is_last)


def _entity(read: _Read, first: int, last: int, label: str, score: float) -> Entity:
    start, end = read.places[first][0], read.places[last][1]
    return {"text": read.text[start:end], "label": label, "score": score, "start": start, "end": end}


def _joined(text: str, entities: Sequence[Entity]) -> list[Entity]:
    """Neighbours of one label with nothing or one character between them are one, of the lower score."""
    joined: list[Entity] = []
    for entity in entities:
        before = joined[-1] if joined else None
        if before is None or before["label"] != entity["label"] or not 0 <= entity["start"] - before["end"] <= 1:
            joined.append(entity)
            continue
        score, end = min(before["score"], entity["score"]), entity["end"]
        joined[-1] = {**before, "text": text[before["start"] : end], "score": score, "end": end}
    return joined


class Gliner:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False  # the library pads

    def __init__(self, model: Any) -> None:
        self._model = model
        self._collator = model.create_collator()
        self.bytes = transformer.bytes_of(model.model)
        self.host_copy = parking.TorchCopy.of(model.model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        # Where the model scores the spans that its tokens propose, the library takes proposals from padding too.
        runs = [[inputs] for inputs in batch] if getattr(self._model.config, "represent_spans", False) else [batch]
        return [output for run in runs for output in self._run(run)]

    def _run(self, batch: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        thresholds = [inputs["threshold"] for inputs in batch]
        collated, kept = self._collate([inputs["words"] for inputs in batch], [inputs["labels"] for inputs in batch])
        found = self._model.decode_batch(
            self._model.run_batch(collated, threshold=thresholds[0]),
            collated,
            threshold=thresholds,
            flat_ner=[inputs["flat"] for inputs in batch],
            multi_label=[inputs["multi_label"] for inputs in batch],
        )
        reads = self._read(collated)
        return [
            {
                "spans": [
                    [own[span.start], own[span.end], span.entity_type, float(span.score)]
                    for span in spans
                    if span.end < len(own)
                ],
                # Words without tokens count as read.
                "read": len(inputs["words"]) if read >= len(own) else own[read],
            }
            for inputs, spans, own, read in zip(batch, found, kept, reads, strict=True)
        ]

    def _collate(self, words: Sequence[list[str]], labels: Sequence[list[str]]) -> tuple[Any, list[list[int]]]:
        """What the model is asked, and which words it is asked of.

        The library counts the words that it sees tokens of, so one without any, as a zero-width space may be, would
        move the places of all behind it.
        """
        kept = [list(range(len(text))) for text in words]
        collated = self._collated(words, labels)
        if any(read < len(text) for read, text in zip(self._read(collated), words, strict=True)):
            tokenize = self._model.data_processor.transformer_tokenizer.tokenize
            kept = [[place for place, word in enumerate(text) if tokenize(word)] for text in words]
            legible = [[text[place] for place in own] for text, own in zip(words, kept, strict=True)]
            collated = self._collated(legible, labels)
        return collated, kept

    def _collated(self, words: Sequence[list[str]], labels: Sequence[list[str]]) -> Any:
        return self._model.collate_batch(self._model.prepare_base_input(words), labels, self._collator)

    @staticmethod
    def _read(collated: Mapping[str, Any]) -> list[int]:
        """How many words of each text have tokens before the tokenizer cuts, which it does silently."""
        last: list[int] = collated["words_mask"].max(dim=1).values.tolist()
        return last

    def facts(self) -> Mapping[str, Any]:
        config = self._model.config
        return {
            "architecture": type(self._model).__name__,
            "dtype": transformer.dtype_of(next(self._model.parameters())),
            "max_words": config.max_len,
            "max_entity_words": config.max_width if config.span_mode != "token_level" else None,
            "max_tokens": self._model.data_processor.transformer_tokenizer.model_max_length,
            "packed": self.packed,
        }


def warm() -> None:
    import gliner  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> GlinerPreparer:
    return GlinerPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Gliner:
    report(0.1)
    model = Gliner(gliner_folder.load(spec, transformer.needed(spec, folder), device))
    report(1.0)
    return model
