"""GLiNER2: entities, classes, structures and relations from texts, as one schema of the caller's asks for them.

`labels` are kinds of entities, or with `task: classification` classes. An `output_schema` is one in GLiNER2's words
(entities, classifications, structures, relations), or a JSON Schema of an object whose properties are strings, enums
of strings or arrays of these. The prompt is written and tokenized by the library, in the engine: how it routes tokens
is its own. Load options (`load:` of the entry), all optional:

    dtype  of the weights on a GPU (float32, bfloat16, float16); a CPU always computes in float32
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
from workers.layers import gliner2_schema, parking, transformer
from workers.layers.checkpoint import read_json, token_limit
from workers.layers.making import MAKING
from workers.layers.redaction import REDACT, redact
from workers.layers.whole import refuse_missing
from workers.layers.windows import Entity, Found, Reach, Window, merge, plan
from workers.layers.words import WordSizes, split
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"labels", "output_schema", "task", "threshold", "multi_label", "top_k", "overflow"})
LIMIT = 512  # tokens, where the entry says nothing
THRESHOLD = 0.5
_WORD = re.compile(r"(?:https?://|www\.)\S+|[\w.%+-]+@[\w.-]+|\w+(?:[-_]\w+)*|\S")
_OVERLAP = 32  # words
_MARKERS_PER_TEXT = 2  # the library's tokens for each name in a schema


@dataclass(frozen=True, slots=True)
class _Read:
    """One window: which characters of which text it is."""

    text: str
    start: int
    end: int
    window: Window


class Gliner2Preparer:
    """Texts in, whatever the schema asks for out. `key` is the threshold, of which a forward has one."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._limit = read_limit(spec, folder)
        self._sizes = WordSizes(spec.model, folder)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        schema = gliner2_schema.asked(self._model, wanted)
        names = gliner2_schema.prompt_texts(schema)
        prompt = sum(self._sizes.count(names)) + _MARKERS_PER_TEXT * len(names)
        if prompt >= self._limit:
            where = "labels" if wanted.output_schema is None else "output_schema"
            what = f"takes {prompt} tokens, which leaves no room for text: {self._model!r} reads {self._limit} at once"
            raise InvalidInput(what, param=f"options.{where}")
        inputs = {"schema": schema, "threshold": THRESHOLD if wanted.threshold is None else wanted.threshold}
        return [self._prepare(item, inputs, prompt, wanted.overflow) for item in payload.items]

    def _prepare(
        self, item: Mapping[str, Any], inputs: Mapping[str, Any], prompt: int, overflow: str | None
    ) -> Parts | ShoalError:
        text = item.get("text")
        if not isinstance(text, str):
            return InvalidInput(f"model {self._model!r} reads text", param="text")
        places = split(_WORD, text)
        sizes = self._sizes.count([text[start:end] for start, end in places])
        room = self._limit - prompt
        try:
            windows = plan(self._model, sizes, Reach(room, room, _OVERLAP), overflow)
        except InputTooLong as error:
            return error
        parts = []
        for window in windows:
            read = _Read(text, places[window.start][0], places[window.end - 1][1], window)
            tokens = prompt + sum(sizes[window.start : window.end])
            about = {"text": text[read.start : read.end], **inputs}
            key = inputs["threshold"]
            parts.append(Prepared(about, tokens, tokens, key=key, truncated=window.is_cut, about=read))
        return parts

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ExtractOptions.from_wire(options)
        for output in outputs:
            if "refused" in output:
                raise InvalidInput(output["refused"], param="options.output_schema")
        answers = [output["answer"] for output in outputs]
        schema = gliner2_schema.asked(self._model, wanted)
        result: dict[str, Any] = {}
        if "entities" in schema:
            result["entities"] = _entities(answers, [part.about for part in parts])
        if "classifications" in schema:
            tasks = [one["task"] for one in schema["classifications"]]
            result["classifications"] = _chosen(gliner2_schema.classifications(answers, tasks), wanted)
        if "relations" in schema:
            result["relations"] = gliner2_schema.relations(answers)
        data = gliner2_schema.data(answers, wanted.output_schema or {})
        if wanted.task == REDACT:
            text = redact(parts[0].about.text if parts else "", result.get("entities", ()))
            data = {**(data or {}), "text": text}
        return result if data is None else {**result, "data": data}


def _chosen(found: Sequence[Mapping[str, Any]], wanted: ExtractOptions) -> list[Mapping[str, Any]]:
    """Of labels' classes those the threshold leaves; a schema has thresholds of its own."""
    least = (wanted.threshold or 0.0) if wanted.output_schema is None else 0.0
    return [one for one in found if one["score"] >= least][: wanted.top_k]


def _entities(answers: Sequence[Mapping[str, Any]], reads: Sequence[_Read]) -> list[Entity]:
    """Spans of different labels may overlap, those of one label may not: so the library has it."""
    found = [list(_spans(answer, read)) for answer, read in zip(answers, reads, strict=True)]
    labels = dict.fromkeys(entity["label"] for window in found for entity in window)
    kept = [
        entity
        for label in labels
        for entity in merge(
            [
                Found(
                    [entity for entity in window if entity["label"] == label],
                    read.start,
                    read.end,
                    read.window.is_first,
                    read.window.is_last,
                )
                for window, read in zip(found, reads, strict=True)
            ],
            flat=True,
            multi_label=False,
        )
    ]
    return sorted(kept, key=lambda entity: (entity["start"], entity["end"]))


def _spans(answer: Mapping[str, Any], read: _Read) -> Sequence[Entity]:
    """Offsets into the whole text; the full stop that the library may add behind a window is none of it."""
    spans = []
    for label, given in (answer.get("entities") or {}).items():
        for one in [given] if isinstance(given, Mapping) else given or ():
            start, end = read.start + one["start"], min(read.start + one["end"], read.end)
            if start < end:
                place = {"start": start, "end": end}
                score = float(one["confidence"])
                spans.append({"text": read.text[start:end], "label": label, "score": score, **place})
    return spans


class Gliner2:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False

    def __init__(self, model: Any, limit: int) -> None:
        self._model = model
        self._limit = limit
        self.bytes = transformer.bytes_of(model)
        self.host_copy = parking.TorchCopy.of(model)
        # The library's own collator answers a text that it cannot prepare with a made-up record.
        model._inference_collator = self._collate

    def _collate(self, batch: Any) -> Any:
        return self._model.processor.collate_fn_inference(
            batch, architecture=self._model.architecture, error_policy="raise"
        )

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """`key` is the threshold."""
        import torch
        from gliner2.inference.schema import Schema

        outputs: list[Mapping[str, Any]] = [{} for _ in batch]
        schemas = {}
        for place, inputs in enumerate(batch):
            try:
                schemas[place] = Schema.from_dict(inputs["schema"])
            except (ValueError, TypeError, KeyError) as error:
                outputs[place] = {"refused": _reason(error)}
        with torch.inference_mode():
            answers = self._model.batch_extract(
                [batch[place]["text"] for place in schemas],
                list(schemas.values()),
                batch_size=max(len(schemas), 1),
                threshold=key,
                include_confidence=True,
                include_spans=True,
            )
        for place, answer in zip(schemas, answers, strict=True):
            outputs[place] = {"answer": _sent(answer)}
        return outputs

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self._model).__name__,
            "encoder": self._model.encoder.config.model_type,
            "dtype": transformer.dtype_of(self._model),
            "max_tokens": self._limit,
            "packed": self.packed,
        }


def _reason(error: Exception) -> str:
    """The library's first complaint, without the lines of pydantic around it."""
    found = getattr(error, "errors", None)
    if found is None:
        return f"is not a schema GLiNER2 takes: {error}"[:300]
    first = found()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"is not a schema GLiNER2 takes: {place}: {first['msg']}"[:300]


def _sent(value: Any) -> Any:
    """Plain maps and lists: the library answers with ordered ones and tuples."""
    if isinstance(value, Mapping):
        return {str(key): _sent(inner) for key, inner in value.items()}
    return [_sent(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_limit(spec: ModelSpec, folder: Path) -> int:
    """Tokens at once. Raises ModelLoadFailed for what the family does not read."""
    unknown = sorted(set(spec.load) - {"dtype"})
    if unknown:
        raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{unknown[0]} is unknown; there is: dtype")
    encoder = read_json(spec.model, folder / "encoder_config" / "config.json")
    if encoder is None:
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no encoder_config/config.json, as GLiNER2 has")
    if not (folder / files.SINGLE).is_file():
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return min(spec.max_tokens or LIMIT, token_limit(spec.model, folder, encoder) - _MARKERS_PER_TEXT)


def warm() -> None:
    import gliner2.inference.engine  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> Gliner2Preparer:
    return Gliner2Preparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Gliner2:
    import torch
    from gliner2.auto import AutoExtractor

    folder = transformer.needed(spec, folder)
    limit = read_limit(spec, folder)
    report(0.1)
    with MAKING:
        model: Any = AutoExtractor.from_pretrained(str(folder), map_location=device)
    refuse_missing(spec, folder / files.SINGLE, model)
    model = model.to(getattr(torch, transformer.precision(spec, device))).eval()
    report(1.0)
    return Gliner2(model, limit)
