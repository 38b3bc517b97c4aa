"""OWLv2: objects of any kinds, named by the caller, in images; every label is looked for by itself.

An object's label is the one of those asked for that fits its box best. All images become squares of one size, and
calls with other labels share a forward: rows of labels are filled up with empty ones, which the model leaves out.
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
THRESHOLD = 0.1  # the library's own
MODEL_TYPE = "owlv2"

_PATCH = 16  # where the config is silent


class OwlPreparer:
    """Images in, boxes out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, about)
        self._recipe = pixels.read(spec.model, folder)
        if self._recipe.size is None:
            raise load_failed(spec.model, UNSUPPORTED, "its image processor makes no squares of one size")
        patch = int((about.config.get("vision_config") or {}).get("patch_size") or _PATCH)
        self._patches = max(1, self._recipe.size[0] // patch) * max(1, self._recipe.size[1] // patch)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        ids = self._asked(wanted.labels)
        return [self._prepare(item, ids) for item in payload.items]

    def _asked(self, labels: Sequence[str] | None) -> np.ndarray:
        """Ids of every label, one a row, int32; zeros behind a label's end are never looked at."""
        if not labels:
            raise InvalidInput(f"model {self._model!r} needs the labels to look for", param="options.labels")
        rows = np.zeros((len(labels), self._tokenizer.limit), np.int32)
        for index, read in enumerate(self._tokenizer.read(labels)):
            tokens = self._tokenizer.wrap(read)
            if tokens.is_truncated:
                wrong = f"label {index} has {tokens.whole} tokens; model {self._model!r} reads at most {rows.shape[1]}"
                raise InvalidInput(wrong, param="options.labels")
            rows[index, : len(tokens.ids)] = tokens.ids
        return rows

    def _prepare(self, item: Mapping[str, Any], ids: np.ndarray) -> Parts | ShoalError:
        try:
            image = images.read(images.only(item, self._model), "images[0]")
        except InvalidInput as error:
            return error
        inputs = {"pixels": self._recipe.apply(image), "ids": ids}
        return [Prepared(inputs, self._patches + ids.size, units={"images": 1}, about={"side": max(image.size)})]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ExtractOptions.from_wire(options)
        least = THRESHOLD if wanted.threshold is None else wanted.threshold
        [output], [part] = outputs, parts
        scores, kinds, boxes = output["scores"], output["kinds"], output["boxes"]
        if not (np.isfinite(scores).all() and np.isfinite(boxes).all()):
            raise NonFiniteOutput(f"model {self._model!r} gave a box or a score that is no number")
        halves = boxes[:, 2:] / 2
        corners = np.concatenate([boxes[:, :2] - halves, boxes[:, :2] + halves], 1) * part.about["side"]
        labels = wanted.labels or ()
        return {
            "objects": [
                {"label": labels[int(kinds[row])], "score": float(scores[row]), "bbox": corners[row].tolist()}
                for row in np.flatnonzero(scores > least).tolist()
            ]
        }


class Owl:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = True  # all images have one size

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        auto = "AutoModelForZeroShotObjectDetection"
        self._model = transformer.read(spec, folder, device, auto=auto, unused=())
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        import torch

        counts = [len(inputs["ids"]) for inputs in batch]
        most = max(counts)
        rows = [np.pad(inputs["ids"], ((0, most - len(inputs["ids"])), (0, 0))) for inputs in batch]
        ids = torch.from_numpy(np.concatenate(rows).astype(np.int64))
        stacked = torch.from_numpy(np.stack([inputs["pixels"] for inputs in batch]))
        with torch.inference_mode():
            found = self._model(
                input_ids=ids.to(self._model.device),
                pixel_values=stacked.to(self._model.device, self._model.dtype),
            )
            best = [logits[:, :count].float().max(-1) for logits, count in zip(found.logits, counts, strict=True)]
            boxes = found.pred_boxes.float().cpu().numpy()
        return [
            {"scores": one.values.sigmoid().cpu().numpy(), "kinds": one.indices.int().cpu().numpy(), "boxes": places}
            for one, places in zip(best, boxes, strict=True)
        ]

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


def preparer(spec: ModelSpec, folder: Path | None) -> OwlPreparer:
    return OwlPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Owl:
    model = Owl(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
