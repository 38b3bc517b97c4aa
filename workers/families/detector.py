"""Detector: objects of any kinds, named by the caller, in images, by Grounding DINO.

An object's label is the one of those asked for whose words the model is surest of; the library joins the words of
several. Images of one forward have one size, so that none is padded: padding would move boxes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import checkpoint, images, parking, pixels, transformer
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"labels", "threshold"})
THRESHOLD = 0.25  # the library's own
MODEL_TYPE = "grounding-dino"

_PIXELS_PER_COST = 1024
_TEXT_TOKENS = 256  # where the config is silent


class DetectorPreparer:
    """Images in, boxes out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, about)
        self._limit = min(self._tokenizer.limit, int(about.config.get("max_text_len") or _TEXT_TOKENS))
        self._recipe = pixels.read(spec.model, folder)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        prompt, ids, spans = self._asked(wanted.labels)
        return [self._prepare(item, prompt, ids, spans) for item in payload.items]

    def _asked(self, labels: Sequence[str] | None) -> tuple[str, np.ndarray, list[tuple[int, int]]]:
        """The labels as one text, its tokens, and which of them are each label's."""
        if not labels:
            raise InvalidInput(f"model {self._model!r} needs the labels to look for", param="options.labels")
        for label in labels:
            if "." in label:
                raise InvalidInput(f"the label {label!r} has a full stop in it, which ends one", param="options.labels")
        words = [label.strip().lower() for label in labels]
        prompt = ". ".join(words) + "."
        [read] = self._tokenizer.read_places([prompt])
        tokens = self._tokenizer.wrap(read.ids)
        if tokens.whole > self._limit:
            wrong = f"the labels have {tokens.whole} tokens; model {self._model!r} reads at most {self._limit}"
            raise InvalidInput(wrong, param="options.labels")
        ends = np.cumsum([len(word) + 2 for word in words]).tolist()
        starts = [end - len(word) - 2 for end, word in zip(ends, words, strict=True)]
        places = [start for start, _ in read.offsets]
        counted = [int(np.searchsorted(places, at)) + self._tokenizer.lead for at in (*starts, ends[-1])]
        stops = [after - 1 for after in counted[1:]]  # without the full stop
        return prompt, tokens.ids, list(zip(counted[:-1], stops, strict=True))

    def _prepare(
        self, item: Mapping[str, Any], prompt: str, ids: np.ndarray, spans: list[tuple[int, int]]
    ) -> Parts | ShoalError:
        try:
            image = images.read(images.only(item, self._model), "images[0]")
        except InvalidInput as error:
            return error
        values = self._recipe.apply(image)
        height, width = values.shape[1:]
        cost = max(1, height * width // _PIXELS_PER_COST)
        about = {"size": image.size, "spans": spans}
        key = f"{width}x{height} {prompt}"
        return [Prepared({"pixels": values, "ids": ids}, cost, key=key, units={"images": 1}, about=about)]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ExtractOptions.from_wire(options)
        least = THRESHOLD if wanted.threshold is None else wanted.threshold
        [output], [part] = outputs, parts
        shares, boxes = output["shares"], output["boxes"]
        if not (np.isfinite(shares).all() and np.isfinite(boxes).all()):
            raise NonFiniteOutput(f"model {self._model!r} gave a box or a score that is no number")
        by_label = np.stack([shares[:, start:end].max(1) for start, end in part.about["spans"]], 1)
        width, height = part.about["size"]
        corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
        corners *= np.array([width, height, width, height], np.float32)
        labels = wanted.labels or ()
        scores = shares.max(1)
        found = np.flatnonzero(scores > least).tolist()
        return {
            "objects": [
                {
                    "label": labels[int(by_label[row].argmax())],
                    "score": float(scores[row]),
                    "bbox": corners[row].tolist(),
                }
                for row in found
            ]
        }


class Detector:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = True  # images of one forward have one size

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        auto = "AutoModelForZeroShotObjectDetection"
        self._model = transformer.read(spec, folder, device, auto=auto, unused=())
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        import torch

        ids = torch.from_numpy(np.stack([inputs["ids"] for inputs in batch]).astype(np.int64))
        stacked = torch.from_numpy(np.stack([inputs["pixels"] for inputs in batch]))
        with torch.inference_mode():
            found = self._model(
                pixel_values=stacked.to(self._model.device, self._model.dtype),
                input_ids=ids.to(self._model.device),
            )
            shares = found.logits[:, :, : ids.shape[1]].float().sigmoid().cpu().numpy()
            boxes = found.pred_boxes.float().cpu().numpy()
        return [{"shares": share, "boxes": box} for share, box in zip(shares, boxes, strict=True)]

    def facts(self) -> Mapping[str, Any]:
        return {"architecture": type(self._model).__name__, "dtype": transformer.dtype_of(self._model)}


def _read(spec: ModelSpec, folder: Path) -> checkpoint.Checkpoint:
    for name in spec.load:
        if name != "dtype":
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: dtype")
    about = checkpoint.read(spec, folder, own=())
    if about.model_type != MODEL_TYPE:
        raise load_failed(spec.model, UNSUPPORTED, f"it is {about.model_type!r}, not {MODEL_TYPE!r}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return about


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> DetectorPreparer:
    return DetectorPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Detector:
    model = Detector(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
