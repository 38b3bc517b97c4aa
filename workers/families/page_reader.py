"""Text out of images by vision-language models, which write what they see: LightOnOCR, GLM-OCR, PaddleOCR-VL.

The checkpoint's own processor, as transformers reads it, makes the model's inputs in the engine; what is worded around
an image is its chat template. Answers are written token by token, always the likeliest.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from protocol.errors import InputTooLong, InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import checkpoint, images, parking, transformer, writing
from workers.layers.making import MAKING
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OPTIONS = frozenset({"instruction", "task", "max_new_tokens"})
MAX_NEW_TOKENS = 4096  # where neither the caller nor the entry says
MOST_PROMPT_CHARACTERS = 4096
_LOAD_OPTIONS = ("dtype", "prompt", "tasks", "max_new_tokens")
_PATCH = 14  # pixels of a side, where the config is silent
_TOKEN_SIDE = 28  # pixels: what a token stands for in most of these models, for the cost


class PageReaderPreparer:
    """Images in, text out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._prompt = str(spec.load.get("prompt", ""))
        self._tasks: Mapping[str, str] = spec.load.get("tasks", {})
        self._usual = int(spec.load.get("max_new_tokens", MAX_NEW_TOKENS))
        text = about.config.get("text_config") or {}
        self._least = 1 + int((about.config.get("vision_config") or {}).get("patch_size") or _PATCH)
        self._positions = int(text.get("max_position_embeddings") or about.max_tokens)
        tokens = checkpoint.read_json(spec.model, folder / "tokenizer.json", {}).get("added_tokens") or []
        self._orders = tuple(token["content"] for token in tokens if token.get("special"))

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        prompt = self._asked(wanted.task, wanted.instruction)
        most = writing.most_tokens(wanted.max_new_tokens, self._usual, self._positions - 1, self._model)
        return [self._prepare(item, prompt, most) for item in payload.items]

    def _asked(self, task: str | None, instruction: str | None) -> str:
        """What is said to the model beside the image. Raises InvalidInput, InputTooLong."""
        if task is not None and instruction is not None:
            raise InvalidInput("a task has words of its own; say an instruction or a task", param="options.task")
        if task is not None and task not in self._tasks:
            known = ", ".join(self._tasks) or "none"
            raise InvalidInput(f"must be one of {known}, not {task[:40]!r}", param="options.task")
        if instruction is None:
            return self._prompt if task is None else self._tasks[task]
        if len(instruction) > MOST_PROMPT_CHARACTERS:
            wrong = f"the instruction has {len(instruction)} characters; at most {MOST_PROMPT_CHARACTERS} are read"
            raise InputTooLong(wrong, param="options.instruction", extra={"limit": MOST_PROMPT_CHARACTERS})
        if any(order in instruction for order in self._orders):
            raise InvalidInput("spells a token that orders the model", param="options.instruction")
        return instruction

    def _prepare(self, item: Mapping[str, Any], prompt: str, most: int) -> Parts | ShoalError:
        try:
            image = images.read(images.only(item, self._model), "images[0]")
        except InvalidInput as error:
            return error
        image = _on_paper(image, self._least)
        places = -(-image.width // _TOKEN_SIDE) * -(-image.height // _TOKEN_SIDE)
        said = len(prompt) // 4 + 1
        inputs = {"image": np.asarray(image), "prompt": prompt}
        return [Prepared(inputs, places + said + most, tokens=said, key=most, units={"images": 1})]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        [output] = outputs
        if not output["finite"]:
            raise NonFiniteOutput(f"model {self._model!r} gave scores of its next token that are no numbers")
        text = output["text"].strip()
        found = [{"text": text, "label": "text", "score": 1.0}] if text else []
        return {"entities": found, "data": {"text": text}, "truncated": not output["ended"]}


class PageReader:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        import transformers

        self._model = transformer.read(spec, folder, device, auto="AutoModelForImageTextToText", unused=())
        kind: Any = transformers.AutoProcessor
        with MAKING:
            self._processor = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=spec.remote_code)
        if not getattr(self._processor, "chat_template", None):
            raise load_failed(spec.model, UNSUPPORTED, "its processor has no chat template")
        self._processor.tokenizer.padding_side = "left"  # so that all of a batch go on writing at its end
        self._writer = writing.Writer(self._model)
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """`key` is the most tokens of an answer."""
        asked = self._processor.apply_chat_template(
            [self._said(inputs) for inputs in batch],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(self._model.device)
        asked.pop("token_type_ids", None)
        asked["pixel_values"] = asked["pixel_values"].to(self._model.dtype)
        rows = self._writer.write(asked, key, lead=asked["input_ids"].shape[1])
        decode = self._processor.tokenizer.decode
        return [
            {"text": decode(row["ids"], skip_special_tokens=True), "ended": row["ended"], "finite": row["finite"]}
            for row in rows
        ]

    def _said(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = [{"type": "image", "image": Image.fromarray(inputs["image"])}]
        if inputs["prompt"]:
            content.append({"type": "text", "text": inputs["prompt"]})
        return [{"role": "user", "content": content}]

    def facts(self) -> Mapping[str, Any]:
        return {"architecture": type(self._model).__name__, "dtype": transformer.dtype_of(self._model)}


def _on_paper(image: Image.Image, least: int) -> Image.Image:
    """At the corner of white paper, where it is smaller than what these models join to one token: they would fail."""
    if min(image.size) >= least:
        return image
    paper = Image.new("RGB", (max(image.width, least), max(image.height, least)), (255, 255, 255))
    paper.paste(image, (0, 0))
    return paper


def _read(spec: ModelSpec, folder: Path) -> checkpoint.Checkpoint:
    for name in spec.load:
        if name not in _LOAD_OPTIONS:
            known = ", ".join(_LOAD_OPTIONS)
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: {known}")
    tasks = spec.load.get("tasks", {})
    if not isinstance(tasks, Mapping) or not all(isinstance(words, str) for words in tasks.values()):
        raise load_failed(spec.model, UNSUPPORTED, "its entry's load.tasks is not a map of tasks to their words")
    about = checkpoint.read(spec, folder, own=(), options=_LOAD_OPTIONS)
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return about


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> PageReaderPreparer:
    return PageReaderPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> PageReader:
    model = PageReader(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
