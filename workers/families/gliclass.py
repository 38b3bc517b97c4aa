"""GLiClass: classes named by the caller, scored for a text in one forward, however many they are.

The preparer writes labels, instruction and text into one prompt and tokenizes it; the library's model runs padded.
A long text is read in windows: its logits are their mean where one class is asked for, and its scores the highest of
any window where several may hold. Load options (`load:` of the entry), all optional:

    dtype  of the weights on a GPU (float32, bfloat16, float16); a CPU always computes in float32
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding

from protocol.errors import InputTooLong, InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import parking, transformer
from workers.layers.checkpoint import Checkpoint, read_json, token_limit
from workers.layers.making import MAKING
from workers.layers.tokenizing import TextTokenizer
from workers.layers.windows import Reach, Window, plan
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"labels", "threshold", "multi_label", "top_k", "instruction", "overflow"})
LIMIT = 1024  # tokens, the library's own
_MARKERS = ("<<LABEL>>", "<<SEP>>", "<<EXAMPLE>>")
_OVERLAP = 64  # tokens


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What stands with every text of a call."""

    labels: tuple[str, ...]
    frame: str
    is_first: bool

    def around(self, text: str) -> str:
        return self.frame + text if self.is_first else text + self.frame

    def text_tokens(self, encoding: Encoding, text: str) -> tuple[int, int]:
        """Where the text's tokens begin and end among those of frame and text."""
        places = encoding.offsets
        if self.is_first:
            return next((at for at, place in enumerate(places) if place[0] >= len(self.frame)), len(places)), len(
                places
            )
        return 0, next((at for at, place in enumerate(places) if place[1] > len(text)), len(places))


class GliclassPreparer:
    """Texts in, classifications out. `key` stays empty: every text brings its own labels."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, about)
        self._is_first = bool(about.config.get("prompt_first"))
        fixed = about.config.get("max_num_classes", 25) if about.config.get("max_labels_alloc") == "fixed" else None
        self._most_labels: int | None = fixed

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        prompt = self._prompt(wanted)
        good = [item["text"] for item in payload.items if self._fault(item) is None]
        encodings = iter(self._tokenizer.read_places([prompt.around(text) for text in good]))
        return [
            self._fault(item) or self._prepare(item["text"], next(encodings), prompt, wanted.overflow)
            for item in payload.items
        ]

    def _prompt(self, wanted: ExtractOptions) -> _Prompt:
        if not wanted.labels:
            raise InvalidInput(f"model {self._model!r} needs the labels to choose from", param="options.labels")
        if self._most_labels is not None and len(wanted.labels) > self._most_labels:
            what = f"model {self._model!r} takes at most {self._most_labels} labels, not {len(wanted.labels)}"
            raise InvalidInput(what, param="options.labels")
        for name, texts in (("labels", wanted.labels), ("instruction", (wanted.instruction or "",))):
            if any(marker in text for text in texts for marker in _MARKERS):
                raise InvalidInput(f"may not have a marker of the model in it: {_MARKERS}", param=f"options.{name}")
        label, separator, _ = _MARKERS
        frame = "".join([*(f"{label}{name}" for name in wanted.labels), separator, wanted.instruction or ""])
        return _Prompt(wanted.labels, frame, self._is_first)

    def _fault(self, item: Mapping[str, Any]) -> ShoalError | None:
        text = item.get("text")
        if not isinstance(text, str):
            return InvalidInput(f"model {self._model!r} reads text", param="text")
        marker = next((marker for marker in _MARKERS if marker in text), None)
        return InvalidInput(f"the text has a marker of the model in it: {marker}", param="text") if marker else None

    def _prepare(self, text: str, encoding: Encoding, prompt: _Prompt, overflow: str | None) -> Parts | ShoalError:
        if not text.strip():
            return []
        start, end = prompt.text_tokens(encoding, text)
        frame = len(encoding.ids) - (end - start)
        room = self._tokenizer.room - frame
        if room < 1:
            what = f"have {frame} tokens, which leaves no room for text: {self._model!r} reads {self._tokenizer.limit}"
            return InvalidInput(f"labels and instruction {what}", param="options.labels")
        try:
            windows = plan(self._model, [1] * (end - start), Reach(room, room, _OVERLAP, "tokens"), overflow)
        except InputTooLong as error:
            return error
        ids = encoding.ids
        return [
            self._part([*ids[:start], *ids[start + one.start : start + one.end], *ids[end:]], one, prompt)
            for one in windows
        ]

    def _part(self, content: Sequence[int], window: Window, prompt: _Prompt) -> Prepared:
        ids = self._tokenizer.wrap(content).ids
        inputs = {"ids": ids, "classes": len(prompt.labels)}
        about = prompt.labels, window.end - window.start
        return Prepared(inputs, cost=len(ids), tokens=len(ids), truncated=window.is_cut, about=about)

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ExtractOptions.from_wire(options)
        if not parts:
            return {"classifications": []}
        labels, _ = parts[0].about
        logits = np.stack([output["logits"] for output in outputs]).astype(np.float64)
        if not np.isfinite(logits).all():
            raise NonFiniteOutput(f"model {self._model!r} gave a score that is no number")
        weights = [part.about[1] for part in parts]
        scores = _sigmoid(logits).max(0) if wanted.multi_label else _softmax(np.average(logits, 0, weights))
        ranked = sorted(zip(labels, scores.tolist(), strict=True), key=lambda pair: -pair[1])
        least = wanted.threshold or 0.0
        kept = [{"label": label, "score": score} for label, score in ranked if score >= least]
        return {"classifications": kept[: wanted.top_k]}


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    shares: np.ndarray = 0.5 * (1.0 + np.tanh(0.5 * logits))  # without overflow on either side
    return shares


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    shares: np.ndarray = powers / powers.sum()
    return shares


class Gliclass:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False

    def __init__(self, model: Any, limit: int) -> None:
        self._model = model
        self._limit = limit
        self._pad = int(model.config.pad_token_id or 0)
        self.bytes = transformer.bytes_of(model)
        self.host_copy = parking.TorchCopy.of(model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """Texts of one length at a time where the model's pooling would count padding as text."""
        outputs: list[Mapping[str, Any]] = [{}] * len(batch)
        reads_padding = self._model.config.pooling_strategy != "first"
        sizes = [len(inputs["ids"]) if reads_padding else 0 for inputs in batch]
        for size in dict.fromkeys(sizes):
            places = [place for place, own in enumerate(sizes) if own == size]
            for place, output in zip(places, self._run([batch[place] for place in places]), strict=True):
                outputs[place] = output
        return outputs

    def _run(self, batch: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        import torch

        from workers.layers.forwards import padded

        with torch.inference_mode():
            asked = padded([inputs["ids"] for inputs in batch], None, self._pad, self._model.device)
            rows = self._model(**asked, max_num_classes=self._classes(batch)).logits.float().cpu().numpy()
        return [{"logits": row[: inputs["classes"]]} for row, inputs in zip(rows, batch, strict=True)]

    def _classes(self, batch: Sequence[Mapping[str, Any]]) -> int | None:
        """How many the model makes room for, as its config says."""
        room = getattr(self._model.config, "max_labels_alloc", "dynamic")
        if room == "fixed":
            return None
        return max(inputs["classes"] for inputs in batch) if room == "dynamic" else int(room)

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": self._model.config.architecture_type,
            "encoder": self._model.config.encoder_config.model_type,
            "dtype": transformer.dtype_of(self._model),
            "max_tokens": self._limit,
            "packed": self.packed,
        }


def read(spec: ModelSpec, folder: Path) -> Checkpoint:
    """Raises ModelLoadFailed for what the family does not read."""
    unknown = sorted(set(spec.load) - {"dtype"})
    if unknown:
        raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{unknown[0]} is unknown; there is: dtype")
    config = read_json(spec.model, folder / "config.json", {})
    kind = config.get("architecture_type", "uni-encoder")
    if config.get("model_type") != "GLiClass" or kind != "uni-encoder":
        raise load_failed(spec.model, UNSUPPORTED, f"its config.json is not of a GLiClass uni-encoder but {kind!r}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    limit = min(spec.max_tokens or LIMIT, token_limit(spec.model, folder, config.get("encoder_config") or {}))
    return Checkpoint(folder, config, pooling=(), normalize=False, max_tokens=limit)


def warm() -> None:
    import gliclass  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> GliclassPreparer:
    return GliclassPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Gliclass:
    """Refuses a checkpoint that leaves a weight to chance."""
    import gliclass
    import torch

    about = read(spec, transformer.needed(spec, folder))
    report(0.1)
    with MAKING:
        model, found = gliclass.GLiClassModel.from_pretrained(
            about.folder,
            dtype=getattr(torch, transformer.precision(spec, device)),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    transformer.refuse_chance(spec, found, transformer.UNUSED)
    report(1.0)
    return Gliclass(model.to(device).eval(), about.max_tokens)
