"""Florence-2: captions, lines of text, objects, phrases and outlines in images, each asked for as a task.

An answer is what transformers' processor makes of it, with boxes in pixels. The model writes it token by token, always
the likeliest: where a checkpoint asks for beams, three times the work, it gets none. Images become squares of one
size; prompts of one forward are filled up to the longest, which the model leaves out.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import checkpoint, images, parking, pixels, regions, transformer, writing
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"task", "instruction", "labels", "max_new_tokens"})
TASK = "<OD>"  # where the caller names none
MAX_NEW_TOKENS = 1024  # where the caller says nothing
MODEL_TYPE = "florence2"

_OLD_OWNER, _OWNER = "microsoft", "florence-community"
# Where the config is silent: it leaves out what is as transformers has it
_IMAGE_TOKEN, _PAD, _POSITIONS = 51289, 1, 1024
_CONVOLUTIONS = {"patch_size": (7, 3, 3, 3), "patch_stride": (4, 2, 2, 2), "patch_padding": (3, 1, 1, 1)}


class FlorencePreparer:
    """Images in, texts and places out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, about)
        self._recipe = pixels.read(spec.model, folder)
        if self._recipe.size is None:
            raise load_failed(spec.model, UNSUPPORTED, "its image processor makes no images of one size")
        self._places = _count_image_tokens(about.config.get("vision_config") or {}, self._recipe.size)
        self._mark = _image_token(about)
        self._positions = checkpoint.count_positions(about.config.get("text_config") or {}) or _POSITIONS
        self._banned = _banned(spec.model, folder)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        ids = self._ids(self._prompt(wanted))
        most = writing.most_tokens(wanted.max_new_tokens, MAX_NEW_TOKENS, self._positions, self._model)
        return [self._prepare(item, ids, most) for item in payload.items]

    def _prompt(self, wanted: ExtractOptions) -> str:
        """The task in the words that the model was taught."""
        name = wanted.task or TASK
        task = regions.TASKS.get(name)
        if task is None:
            known = ", ".join(regions.TASKS)
            raise InvalidInput(f"must be one of {known}, not {name[:40]!r}", param="options.task")
        if wanted.labels is not None and not task.reads_labels:
            raise InvalidInput(f"the task {name} takes no labels", param="options.labels")
        if wanted.labels is not None and wanted.instruction is not None:
            raise InvalidInput(f"the task {name} takes an instruction or labels, not both", param="options.labels")
        said = ", ".join(wanted.labels) if wanted.labels else (wanted.instruction or "").strip()
        where = "options.labels" if wanted.labels else "options.instruction"
        if bool(said) != task.reads_input:
            wrong = f"the task {name} takes no instruction" if said else f"the task {name} needs an instruction"
            raise InvalidInput(wrong, param=where)
        if any(other in said for other in regions.TASKS):
            raise InvalidInput("names a task; say it as options.task", param=where)
        return task.prompt.replace("{input}", said)

    def _ids(self, prompt: str) -> np.ndarray:
        """With the special tokens around, int32; what stands for the image comes in front, in the engine."""
        [read] = self._tokenizer.read([prompt])
        tokens = self._tokenizer.wrap(read)
        room = min(self._positions - self._places, self._tokenizer.limit)
        if tokens.whole > room:
            wrong = f"the prompt has {tokens.whole} tokens; model {self._model!r} reads {room} beside the image"
            raise InputTooLong(wrong, param="options.instruction", extra={"limit": room})
        if self._mark in tokens.ids:
            raise InvalidInput("spells the token that stands for the image", param="options.instruction")
        return tokens.ids

    def _prepare(self, item: Mapping[str, Any], ids: np.ndarray, most: int) -> Parts | ShoalError:
        try:
            image = images.read(images.only(item, self._model), "images[0]")
        except InvalidInput as error:
            return error
        inputs = {"pixels": self._recipe.apply(image), "ids": ids, "places": self._places}
        cost = self._places + len(ids) + most
        return [Prepared(inputs, cost, len(ids), key=most, units={"images": 1}, about=image.size)]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        name = ExtractOptions.from_wire(options).task or TASK
        [output], [part] = outputs, parts
        text = self._tokenizer.spell(writing.written(output, self._model))
        answer = regions.read(regions.TASKS[name], text, part.about, self._banned)
        return {**regions.result(name, answer), "truncated": not output["ended"]}


class Florence:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        about = _read(spec, folder)
        self._mark = _image_token(about)
        self._pad = int((about.config.get("text_config") or {}).get("pad_token_id", _PAD))
        self._model = transformer.read(spec, folder, device, auto="AutoModelForImageTextToText", unused=())
        self._writer = writing.Writer(self._model)
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """`key` is the most tokens of an answer."""
        import torch

        from workers.layers.forwards import padded

        texts = [np.concatenate([np.full(inputs["places"], self._mark), inputs["ids"]]) for inputs in batch]
        stacked = torch.from_numpy(np.stack([inputs["pixels"] for inputs in batch]))
        asked = padded(texts, None, self._pad, self._model.device)
        asked["pixel_values"] = stacked.to(self._model.device, self._model.dtype)
        return self._writer.write(asked, key)

    def facts(self) -> Mapping[str, Any]:
        return {"architecture": type(self._model).__name__, "dtype": transformer.dtype_of(self._model)}


def _read(spec: ModelSpec, folder: Path) -> checkpoint.Checkpoint:
    for name in spec.load:
        if name != "dtype":
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: dtype")
    about = checkpoint.read(spec, folder, own=())
    if about.model_type != MODEL_TYPE:
        raise load_failed(spec.model, UNSUPPORTED, f"it is {about.model_type!r}, not {MODEL_TYPE!r}")
    if "auto_map" in about.config or (about.config.get("text_config") or {}).get("model_type", "bart") != "bart":
        raise load_failed(spec.model, UNSUPPORTED, _old_layout(spec))
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return about


def _old_layout(spec: ModelSpec) -> str:
    """Microsoft's own repositories name code of theirs, from before transformers knew the model."""
    owner, _, name = (spec.source.repo or spec.model).partition("/")
    same = f"{_OWNER}/{name} has the same weights" if owner == _OLD_OWNER else f"{_OWNER} has Florence-2's own weights"
    return f"its folder is of the layout with code of its own, which is not run; {same} in the one that is read"


def _image_token(about: checkpoint.Checkpoint) -> int:
    return int(about.config.get("image_token_id", _IMAGE_TOKEN))


def _count_image_tokens(vision: Mapping[str, Any], size: tuple[int, int]) -> int:
    """One for each place of the last convolution's map, and one for all of them."""
    kernels, strides, paddings = (vision.get(name, usual) for name, usual in _CONVOLUTIONS.items())
    height, width = size
    for kernel, stride, padding in zip(kernels, strides, paddings, strict=True):
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    return 1 + height * width


def _banned(model: str, folder: Path) -> frozenset[str]:
    """Phrases that the processor's file says are given no place."""
    config = checkpoint.read_json(model, folder / "processor_config.json", {}).get("post_processor_config") or {}
    return frozenset(config.get("phrase_grounding", {}).get("banned_grounding_tokens", ()))


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> FlorencePreparer:
    return FlorencePreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Florence:
    model = Florence(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
