"""Image encoders: CLIP and SigLIP put texts and images into one space, a dense vector per item.

Texts are tokenized and images resized in the worker, as the checkpoint's own files say. `load:` of the entry takes
what `workers.layers.checkpoint` lists, but for `pooling`: the model's own is the only one.
"""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import checkpoint, images, parking, pixels, transformer, vectors
from workers.layers.texts import TextReader
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

TEXT, IMAGE = "text", "image"
MODEL_TYPES = ("clip", "siglip")

_SPOKEN = str.maketrans("", "", string.punctuation)
_PATCH = {"clip": 32, "siglip": 16}  # where a vision_config is silent


class ImagePreparer:
    """Texts and images in, vectors out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._about, self._settings = _read(spec, folder)
        self._reader = TextReader(spec.model, self._about)
        self._recipe = pixels.read(spec.model, folder)
        vision = self._about.config.get("vision_config") or {}
        patch = vision.get("patch_size") or _PATCH[self._about.model_type]
        self._image_cost = max(1, (vision.get("image_size") or 224) // patch) ** 2
        self._pads = self._about.model_type == "siglip"
        self._pad = _pad_id(spec, self._reader, self._settings) if self._pads else 0

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = EncodeOptions.from_wire(payload.options)
        if wanted.output_types != ("dense",):
            raise InvalidInput(f"model {self._model!r} gives dense vectors only", param="options.output_types")
        if wanted.chunk is not None:
            raise InvalidInput(f"model {self._model!r} reads no text in chunks", param="options.chunk")
        texts = [item for item in payload.items if "images" not in item]
        said = iter(self._reader.read(Payload([self._spoken(item) for item in texts], payload.options)))
        return [self._image(item) if "images" in item else self._text(next(said)) for item in payload.items]

    def _spoken(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """SigLIP 1 was trained on lower case without punctuation, which its tokenizer's own class sees to."""
        if self._settings.get("tokenizer_class") != "SiglipTokenizer" or not isinstance(item.get("text"), str):
            return dict(item)
        return {**item, "text": " ".join(item["text"].lower().translate(_SPOKEN).split())}

    def _text(self, read: Parts | ShoalError) -> Parts | ShoalError:
        if isinstance(read, ShoalError):
            return read
        [part] = read
        if not self._pads:
            return [replace(part, key=TEXT)]
        room = self._about.max_tokens - len(part.inputs["ids"])
        before = self._settings.get("padding_side") == "left"
        ids = np.pad(part.inputs["ids"], (room, 0) if before else (0, room), constant_values=self._pad)
        return [replace(part, inputs={"ids": ids}, key=TEXT, cost=len(ids))]

    def _image(self, item: Mapping[str, Any]) -> Parts | ShoalError:
        try:
            if "text" in item or "token_ids" in item:
                raise InvalidInput(f"model {self._model!r} reads a text or an image per item, not both", param="images")
            image = images.read(images.only(item, self._model), "images[0]")
        except InvalidInput as error:
            return error
        return [Prepared({"pixels": self._recipe.apply(image)}, self._image_cost, key=IMAGE, units={"images": 1})]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        return vectors.encoded(self._model, outputs[0], options, self._about.normalize)


class ImageEncoder:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False

    def __init__(self, spec: ModelSpec, about: checkpoint.Checkpoint, device: str) -> None:
        self._about = about
        self._model = transformer.read(spec, about.folder, device, unused=())
        self._precision = transformer.dtype_of(self._model)
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)
        self.dims = len(self.forward([{"ids": np.zeros(1, np.int32)}], TEXT)[0]["dense"])

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        import torch

        with torch.inference_mode():
            found = self._images(batch) if key == IMAGE else self._texts(batch)
            rows = getattr(found, "pooler_output", found).float().cpu().numpy()
        return [{"dense": row, "precision": self._precision} for row in rows]

    def _images(self, batch: Sequence[Mapping[str, Any]]) -> Any:
        import torch

        stacked = torch.from_numpy(np.stack([inputs["pixels"] for inputs in batch]))
        return self._model.get_image_features(pixel_values=stacked.to(self._model.device, self._model.dtype))

    def _texts(self, batch: Sequence[Mapping[str, Any]]) -> Any:
        """CLIP's attention looks back only, so that padding behind a text changes nothing; SigLIP's comes padded."""
        import torch

        texts = [inputs["ids"] for inputs in batch]
        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        return self._model.get_text_features(input_ids=torch.from_numpy(ids).to(self._model.device))

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self._model).__name__,
            "dims": self.dims,
            "dtype": self._precision,
            "normalize": self._about.normalize,
            "max_tokens": self._about.max_tokens,
        }


def _read(spec: ModelSpec, folder: Path) -> tuple[checkpoint.Checkpoint, dict[str, Any]]:
    """The checkpoint, and its tokenizer_config.json. Raises ModelLoadFailed."""
    if "pooling" in spec.load:
        raise load_failed(spec.model, UNSUPPORTED, "its entry's load.pooling means nothing to this family")
    about = checkpoint.read(spec, folder, own=())
    if about.model_type not in MODEL_TYPES:
        raise load_failed(spec.model, UNSUPPORTED, f"it is {about.model_type!r}, not one of {', '.join(MODEL_TYPES)}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    settings = checkpoint.read_json(spec.model, folder / "tokenizer_config.json", {})
    lowers = settings.get("tokenizer_class") in ("Siglip2Tokenizer", "Siglip2TokenizerFast")
    return replace(about, lower_case=about.lower_case or lowers), settings


def _pad_id(spec: ModelSpec, reader: TextReader, settings: Mapping[str, Any]) -> int:
    said = settings.get("pad_token", "<pad>")
    found = reader.tokenizer.read([said["content"] if isinstance(said, Mapping) else str(said)])[0]
    if len(found) != 1:
        raise load_failed(spec.model, UNSUPPORTED, "its tokenizer has no token to pad with")
    return found[0]


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> ImagePreparer:
    return ImagePreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> ImageEncoder:
    about, _ = _read(spec, transformer.needed(spec, folder))
    report(0.1)
    model = ImageEncoder(spec, about, device)
    if model.dims != spec.dims.get("dense", model.dims):
        wrong = f"its entry says {spec.dims['dense']} dimensions, it gives {model.dims}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    report(1.0)
    return model
