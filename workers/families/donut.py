"""Donut: the fields of a document, an answer about it, or its class, written from its image without OCR.

A checkpoint was made for one task, whose token begins what the decoder reads; a question may follow. Pages become
images of one size. What shares a forward has a beginning of the same length, since the decoder counts from it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import checkpoint, fields, framed, images, parking, transformer, writing
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"task", "instruction", "max_new_tokens"})
MODEL_TYPE = "vision-encoder-decoder"
PARTS = {"encoder": "donut-swin", "decoder": "mbart"}  # and their model_type
LOAD_OPTIONS = ("dtype", "pickles")
ASKING = "<s_docvqa>"  # the task that wants a question

_PIXELS_PER_COST = 1024  # a place of the encoder's last layer stands for as many
_QUESTION, _QUESTION_END, _ANSWER = "<s_question>", "</s_question>", "<s_answer>"
_UNKNOWN, _POSITIONS, _PAD, _END = "<unk>", 1024, 1, 2  # where files are silent


class DonutPreparer:
    """Images of documents in, fields out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, about)
        self._frame = framed.read(spec.model, folder)
        decoder = about.config["decoder"]
        self._positions = int(decoder.get("max_position_embeddings", _POSITIONS))
        self._marks = [self._tokenizer.spell([token]) for token in _end_and_pad(decoder)]
        settings = checkpoint.read_json(spec.model, folder / "tokenizer_config.json", {})
        self._unknown = self._tokenizer.id_of(_spelled(settings.get("unk_token", _UNKNOWN)))
        self._tidies = bool(settings.get("clean_up_tokenization_spaces")) and not _is_byte_pairs(spec.model, folder)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        [read] = self._tokenizer.read([self._beginning(wanted)])
        room = self._positions - len(read)
        if room < 1:
            wrong = f"the question has {len(read)} tokens; model {self._model!r} has room for {self._positions - 1}"
            raise InputTooLong(wrong, param="options.instruction", extra={"limit": self._positions - 1})
        most = writing.most_tokens(wanted.max_new_tokens, room, room, self._model)
        return [self._prepare(item, np.array(read, np.int32), most) for item in payload.items]

    def _beginning(self, wanted: ExtractOptions) -> str:
        """What the decoder reads before it writes."""
        task, question = wanted.task, (wanted.instruction or "").strip()
        if task is None:
            raise InvalidInput(f"model {self._model!r} needs a task, such as {ASKING}", param="options.task")
        if not (task.startswith("<s_") and task.endswith(">")) or self._tokenizer.id_of(task) is None:
            wrong = f"must be a token of model {self._model!r}, such as {ASKING}, not {task[:40]!r}"
            raise InvalidInput(wrong, param="options.task")
        if not question:
            if task == ASKING:
                raise InvalidInput(f"the task {task} needs a question", param="options.instruction")
            return task
        if any(self._tokenizer.id_of(mark) is None for mark in (_QUESTION, _QUESTION_END, _ANSWER)):
            raise InvalidInput(f"model {self._model!r} takes no question", param="options.instruction")
        return f"{task}{_QUESTION}{question}{_QUESTION_END}{_ANSWER}"

    def _prepare(self, item: Mapping[str, Any], ids: np.ndarray, most: int) -> Parts | ShoalError:
        try:
            image = images.read(images.only(item, self._model), "images[0]")
        except InvalidInput as error:
            return error
        height, width = self._frame.size
        inputs = {"page": self._frame.apply(image), "ids": ids, "most": most, "unknown": self._unknown}
        cost = max(1, height * width // _PIXELS_PER_COST) + len(ids) + most
        return [Prepared(inputs, cost, len(ids), key=f"{len(ids)}+{most}", units={"images": 1}, about=ids)]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        [output], [part] = outputs, parts
        text = self._tokenizer.spell([*part.about.tolist(), *writing.written(output, self._model)])
        text = fields.tidied(text) if self._tidies else text
        for mark in self._marks:
            text = text.replace(mark, "")
        text = re.sub("<.*?>", "", text, count=1).strip()  # the task's token
        found = fields.read(text, lambda name: self._tokenizer.id_of(name) is not None)
        asked = bool(ExtractOptions.from_wire(options).instruction)
        return {**fields.result(found, asked), "truncated": not output["ended"]}


class Donut:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = True  # what shares a forward has one size

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        end, pad = _end_and_pad(_read(spec, folder).config["decoder"])
        self._frame = framed.read(spec.model, folder)
        self._model = transformer.read(spec, folder, device, auto="AutoModelForImageTextToText", unused=())
        self._writer = writing.Writer(self._model, eos_token_id=end, pad_token_id=pad)
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """All have beginnings of one length and the same most tokens of an answer: `key` is both."""
        import torch

        ids = torch.from_numpy(np.stack([inputs["ids"] for inputs in batch]).astype(np.int64))
        asked = {
            "pixel_values": self._pixels([inputs["page"] for inputs in batch]),
            "decoder_input_ids": ids.to(self._model.device),
        }
        first = batch[0]
        never = None if first["unknown"] is None else [[first["unknown"]]]
        return self._writer.write({**asked, "bad_words_ids": never}, first["most"], lead=ids.shape[1])

    def _pixels(self, pages: Sequence[np.ndarray]) -> Any:
        """Channels first, in the model's precision, on its device."""
        import torch

        device = self._model.device
        mean, std = (torch.from_numpy(values).to(device) for values in (self._frame.mean, self._frame.std))
        scaled = torch.from_numpy(np.stack(pages)).to(device).float() * self._frame.factor
        return ((scaled - mean) / std).permute(0, 3, 1, 2).contiguous().to(self._model.dtype)

    def facts(self) -> Mapping[str, Any]:
        return {"architecture": type(self._model).__name__, "dtype": transformer.dtype_of(self._model)}


def _read(spec: ModelSpec, folder: Path) -> checkpoint.Checkpoint:
    for name in spec.load:
        if name not in LOAD_OPTIONS:
            known = ", ".join(LOAD_OPTIONS)
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: {known}")
    about = checkpoint.read(spec, folder, own=(), options=("pickles",))
    if about.model_type != MODEL_TYPE:
        raise load_failed(spec.model, UNSUPPORTED, f"it is {about.model_type!r}, not {MODEL_TYPE!r}")
    for part, kind in PARTS.items():
        found = (about.config.get(part) or {}).get("model_type")
        if found != kind:
            raise load_failed(spec.model, UNSUPPORTED, f"its {part} is {found!r}, not {kind!r}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors")
    return about


def _end_and_pad(decoder: Mapping[str, Any]) -> tuple[int, int]:
    return int(decoder.get("eos_token_id", _END)), int(decoder.get("pad_token_id", _PAD))


def _is_byte_pairs(model: str, folder: Path) -> bool:
    """Transformers leaves the spaces of such tokenizers as they are."""
    kind = checkpoint.read_json(model, folder / "tokenizer.json", {}).get("model") or {}
    return bool(kind.get("type") == "BPE")


def _spelled(token: Any) -> str:
    """A token in the tokenizer's settings: its name, or a map with it."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> DonutPreparer:
    return DonutPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Donut:
    model = Donut(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
