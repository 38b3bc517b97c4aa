"""SAM 3: every object that a few words name, found in an image; each label is looked for by itself.

Carion et al., 2025, https://arxiv.org/abs/2511.16719, as transformers' `Sam3Model` computes it: the image is seen once
for all its labels, a score is the object's times that of the label being there at all. Boxes are answered, no masks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import checkpoint, images, parking, transformer
from workers.layers.making import MAKING
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"labels", "threshold"})
THRESHOLD = 0.3  # the library's own
MODEL_TYPES = ("sam3", "sam3_video")  # the detector is part of the latter

_LONGEST_LABEL = 32  # tokens; the processor's own
_AT_ONCE = 8  # labels that are looked for together: each takes memory for the whole image
_SIDE, _PATCH = 1008, 14  # of the image that the model sees, where the config is silent


class SegmenterPreparer:
    """Images in, boxes out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, about)
        backbone = _backbone(about)
        self._patches = (int(backbone.get("image_size", _SIDE)) // int(backbone.get("patch_size", _PATCH))) ** 2

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        ids = self._asked(wanted.labels)
        return [self._prepare(item, ids) for item in payload.items]

    def _asked(self, labels: Sequence[str] | None) -> list[np.ndarray]:
        if not labels:
            raise InvalidInput(f"model {self._model!r} needs the labels to look for", param="options.labels")
        rows = []
        for index, read in enumerate(self._tokenizer.read(labels)):
            tokens = self._tokenizer.wrap(read)
            if tokens.whole > _LONGEST_LABEL:
                wrong = f"label {index} has {tokens.whole} tokens; model {self._model!r} reads at most {_LONGEST_LABEL}"
                raise InvalidInput(wrong, param="options.labels")
            rows.append(tokens.ids)
        return rows

    def _prepare(self, item: Mapping[str, Any], ids: Sequence[np.ndarray]) -> Parts | ShoalError:
        try:
            image = images.read(images.only(item, self._model), "images[0]")
        except InvalidInput as error:
            return error
        inputs = {"image": np.asarray(image), "labels": list(ids)}
        cost = self._patches * (1 + len(ids))
        return [Prepared(inputs, cost, units={"images": 1}, about={"size": image.size})]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        """All that is surer than the threshold, label by label, in the model's order."""
        wanted = ExtractOptions.from_wire(options)
        least = THRESHOLD if wanted.threshold is None else wanted.threshold
        [output], [part] = outputs, parts
        scores, boxes = output["scores"], output["boxes"]
        if not (np.isfinite(scores).all() and np.isfinite(boxes).all()):
            raise NonFiniteOutput(f"model {self._model!r} gave a box or a score that is no number")
        width, height = part.about["size"]
        corners = boxes * np.array([width, height, width, height], np.float32)
        labels = wanted.labels or ()
        return {
            "objects": [
                {"label": labels[kind], "score": float(scores[kind, at]), "bbox": corners[kind, at].tolist()}
                for kind, at in np.argwhere(scores > least).tolist()
            ]
        }


class Segmenter:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = True  # all images have one size

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        import transformers

        self._model = transformer.read(spec, folder, device, auto="Sam3Model", unused=())
        self._model.set_attn_implementation("sdpa" if self._model._supports_sdpa else "eager")
        kind: Any = transformers.AutoImageProcessor
        with MAKING:
            self._images = kind.from_pretrained(folder, local_files_only=True)
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """Of each image `scores` (labels, queries) and `boxes` (labels, queries, 4), corners in shares of its sides."""
        import torch
        from PIL import Image

        pictures = [Image.fromarray(inputs["image"]) for inputs in batch]
        pixels = self._images(images=pictures, return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            seen = self._model.get_vision_features(pixels.to(self._model.device, self._model.dtype))
            return [self._look(_of_one(seen, index), inputs["labels"]) for index, inputs in enumerate(batch)]

    def _look(self, seen: Sequence[Sequence[Any]], labels: Sequence[np.ndarray]) -> Mapping[str, Any]:
        scores, boxes = [], []
        for some in _groups(labels):
            found = self._model(vision_embeds=self._repeated(seen, len(some)), **self._spelled(some))
            scores.append((found.pred_logits.sigmoid() * found.presence_logits.sigmoid()).float().cpu().numpy())
            boxes.append(found.pred_boxes.float().cpu().numpy())
        return {"scores": np.concatenate(scores), "boxes": np.concatenate(boxes)}

    def _spelled(self, labels: Sequence[np.ndarray]) -> dict[str, Any]:
        import torch

        ids = np.zeros((len(labels), _LONGEST_LABEL), np.int64)
        ids[:] = self._model.config.text_config.pad_token_id or 0
        mask = np.zeros_like(ids)
        for row, label in enumerate(labels):
            ids[row, : len(label)] = label
            mask[row, : len(label)] = 1
        device = self._model.device
        return {"input_ids": torch.from_numpy(ids).to(device), "attention_mask": torch.from_numpy(mask).to(device)}

    def _repeated(self, seen: Sequence[Sequence[Any]], count: int) -> Any:
        from transformers.models.sam3.modeling_sam3 import Sam3VisionEncoderOutput

        states, places = (tuple(level.expand(count, *level.shape[1:]) for level in levels) for levels in seen)
        return Sam3VisionEncoderOutput(fpn_hidden_states=states, fpn_position_encoding=places)

    def facts(self) -> Mapping[str, Any]:
        return {"architecture": type(self._model).__name__, "dtype": transformer.dtype_of(self._model)}


def _of_one(seen: Any, index: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What was seen of one image of a batch, at every level, and the encoding of its places."""
    states = tuple(level[index : index + 1] for level in seen.fpn_hidden_states)
    return states, tuple(
        level[:1] if len(level) == 1 else level[index : index + 1] for level in seen.fpn_position_encoding
    )


def _groups(labels: Sequence[np.ndarray]) -> Iterator[Sequence[np.ndarray]]:
    for start in range(0, len(labels), _AT_ONCE):
        yield labels[start : start + _AT_ONCE]


def _backbone(about: checkpoint.Checkpoint) -> Mapping[str, Any]:
    config = about.config.get("detector_config") or about.config
    found: Mapping[str, Any] = (config.get("vision_config") or {}).get("backbone_config") or {}
    return found


def _read(spec: ModelSpec, folder: Path) -> checkpoint.Checkpoint:
    for name in spec.load:
        if name != "dtype":
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: dtype")
    about = checkpoint.read(spec, folder, own=())
    if about.model_type not in MODEL_TYPES:
        raise load_failed(spec.model, UNSUPPORTED, f"it is {about.model_type!r}, not {MODEL_TYPES[0]!r}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return about


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> SegmenterPreparer:
    return SegmenterPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Segmenter:
    model = Segmenter(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
