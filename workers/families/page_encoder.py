"""Pages as images, found by late interaction with a question in words: ColPali and ColQwen2.

Faysse et al., 2024, https://arxiv.org/abs/2407.01449: a vision-language model gives each patch of a page's image, and
each token of a question, a vector; MaxSim compares them. As in transformers' own `ColPaliForRetrieval` and
`ColQwen2ForRetrieval`, texts are questions and images are documents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from protocol.errors import InputTooLong, InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions, ScoreOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import checkpoint, images, interaction, muvera, parking, patched, pixels, transformer, vectors
from workers.layers.checkpoint import Checkpoint, read_json
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

_BUFFER = 10  # pad tokens behind a question, for the model to think in


@dataclass(frozen=True, slots=True)
class _Kind:
    """What transformers' processor puts around questions and images; `image` is the token that stands for a patch."""

    architecture: str
    image: str
    question: str
    page: str  # with {image} where the image's tokens stand


_KINDS = {
    "colpali": _Kind("ColPaliForRetrieval", "<image>", "Question: ", "{image}{bos}Describe the image.\n"),
    "colqwen2": _Kind(
        "ColQwen2ForRetrieval",
        "<|image_pad|>",
        "Query: ",
        "<|im_start|>user\n<|vision_start|>{image}<|vision_end|>Describe the image.<|im_end|><|endoftext|>",
    ),
}


class PagePreparer:
    """`key` stays empty: a forward runs its images and its texts one after the other."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._kind = _KINDS[about.model_type]
        settings = read_json(spec.model, folder / "processor_config.json", {})
        marks = read_json(spec.model, folder / "tokenizer_config.json", {})
        self._tokenizer = TextTokenizer(spec.model, about)
        self._limit = about.max_tokens
        bos, pad = _spelled(marks.get("bos_token")), _spelled(marks.get("pad_token"))
        before = bos if self._kind.architecture == "ColPaliForRetrieval" else ""
        self._question = before + settings.get("query_prefix", self._kind.question) + "{text}" + pad * _BUFFER + "\n"
        self._page = self._kind.page.replace("{bos}", bos)
        self._image = self._tokenizer.id_of(self._kind.image)
        if self._image is None or not pad:
            raise load_failed(spec.model, UNSUPPORTED, f"its tokenizer lacks {self._kind.image} or a token for padding")
        self._recipe = _recipe(spec, folder, about)
        self._reserved = {*self._tokenizer.read([self._kind.image])[0]}
        self._muvera = muvera.Encodings()

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        if payload.query is not None:
            return self._prepare_pairs(payload)
        wanted = EncodeOptions.from_wire(payload.options)
        self._check(wanted)
        return [self._read(item, wanted.overflow) for item in payload.items]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        [output], [part] = outputs, parts
        if "score" in output:
            return {"score": self._score(output, ScoreOptions.from_wire(options))}
        wanted = EncodeOptions.from_wire(options)
        made: dict[str, Any] = {}
        if "multivector" in wanted.output_types:
            made["multivector"] = vectors.finish_many(
                self._model, output["rows"], precision=output["precision"], dtype=wanted.output_dtype
            )
        if "dense" in wanted.output_types:
            shape = muvera.Shape.from_wire(wanted.muvera or {})
            made["dense"] = vectors.finish(
                self._model,
                self._muvera.encode(output["rows"], shape, is_query="pixels" not in part.inputs),
                precision=output["precision"],
                dimensions=None,
                normalize=bool(wanted.normalize),
                dtype=wanted.output_dtype,
            )
        return made

    def _check(self, wanted: EncodeOptions) -> None:
        model = self._model
        if "sparse" in wanted.output_types or ("dense" in wanted.output_types and wanted.muvera is None):
            wrong = f"model {model!r} gives vectors by token, and one dense vector of them with the option 'muvera'"
            raise InvalidInput(wrong, param="options.output_types")
        for name, value in (("chunk", wanted.chunk), ("prompt", wanted.prompt), ("instruction", wanted.instruction)):
            if value is not None:
                raise InvalidInput(f"model {model!r} does not read {name!r}", param=f"options.{name}")
        if wanted.normalize is False:
            raise InvalidInput(f"model {model!r} gives vectors of unit length", param="options.normalize")

    def _score(self, output: Mapping[str, Any], wanted: ScoreOptions) -> float:
        """The sum of the query's best similarities, or the mean of them from 0 to 1."""
        total, count = float(output["score"]), int(output["count"])
        if not np.isfinite(total):
            raise NonFiniteOutput(f"model {self._model!r} gave a score that is not finite")
        return (1 + total / count) / 2 if wanted.normalize else total

    def _prepare_pairs(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ScoreOptions.from_wire(payload.options)
        if wanted.instruction is not None:
            raise InvalidInput(f"model {self._model!r} takes no instruction", param="options.instruction")
        query = interaction.the_query(self._read(payload.query or {}, wanted.overflow))
        return interaction.with_query(query, [self._read(item, wanted.overflow) for item in payload.items])

    def _read(self, item: Mapping[str, Any], overflow: str) -> Parts | ShoalError:
        try:
            if "images" in item and "text" in item:
                raise InvalidInput(f"model {self._model!r} reads a text or an image per item, not both", param="images")
            return [self._page_of(item) if "images" in item else self._question_of(item, overflow)]
        except InvalidInput as error:
            return error

    def _page_of(self, item: Mapping[str, Any]) -> Prepared:
        image = images.read(images.only(item, self._model), "images[0]")
        inputs, count = self._recipe(image)
        ids = self._tokenizer.read([self._page.replace("{image}", self._kind.image * count)])[0]
        return Prepared({"ids": np.array(ids, np.int32), **inputs}, cost=len(ids), units={"images": 1})

    def _question_of(self, item: Mapping[str, Any], overflow: str) -> Prepared:
        text = item.get("text")
        if not isinstance(text, str):
            raise InvalidInput(f"model {self._model!r} reads a text or an image", param="text")
        before, after = self._question.split("{text}")
        ids = self._tokenizer.read([before + text + after])[0]
        if self._reserved & set(ids):
            raise InvalidInput(f"the text spells {self._kind.image}, which stands for an image here", param="text")
        whole = len(ids)
        if whole > self._limit:
            if overflow == "error":
                wrong = f"the text has {whole} tokens; model {self._model!r} reads at most {self._limit}"
                raise InputTooLong(wrong, extra={"tokens": whole, "limit": self._limit})
            end = self._tokenizer.read([after])[0]
            ids = [*ids[: self._limit - len(end)], *end]
        return Prepared({"ids": np.array(ids, np.int32)}, cost=len(ids), tokens=len(ids), truncated=len(ids) < whole)


def _recipe(spec: ModelSpec, folder: Path, about: Checkpoint) -> Callable[[Image.Image], tuple[dict[str, Any], int]]:
    """What makes an image's inputs, and says for how many tokens they stand."""
    if about.model_type == "colqwen2":
        patches = patched.read(spec.model, folder)

        def by_patches(image: Image.Image) -> tuple[dict[str, Any], int]:
            made, grid = patches.apply(image)
            return {"pixels": made, "grid": grid}, patches.tokens(grid)

        return by_patches
    squares = pixels.read(spec.model, folder)
    vision = about.config["vlm_config"]["vision_config"]
    count = int(vision.get("num_image_tokens") or (vision["image_size"] // vision["patch_size"]) ** 2)
    return lambda image: ({"pixels": squares.apply(image)}, count)


def _spelled(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token or "")


def _read(spec: ModelSpec, folder: Path) -> Checkpoint:
    about = checkpoint.read(spec, folder, own=())
    if about.model_type not in _KINDS:
        known = ", ".join(_KINDS)
        raise load_failed(spec.model, UNSUPPORTED, f"it is {about.model_type!r}; this family reads {known}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return about


class PageEncoder:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False

    def __init__(self, model: Any, limit: int) -> None:
        self._model = model
        self._limit = limit
        self._pad = int(model.config.vlm_config.text_config.pad_token_id or 0)
        self._precision = transformer.dtype_of(model)
        self.bytes = transformer.bytes_of(model)
        self.host_copy = parking.TorchCopy.of(model)
        self.dims = int(model.embedding_dim)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """Rows of an image or a text, float32 (tokens, width); of a pair its MaxSim and how many rows its query has."""
        import torch

        texts, query_of = interaction.with_queries(batch)
        with torch.inference_mode():
            rows = self._rows(texts)
            return [
                {"rows": rows[index].cpu().numpy(), "precision": self._precision}
                if query is None
                else {"score": interaction.maxsim(rows[query], rows[index]), "count": len(rows[query])}
                for index, query in enumerate(query_of)
            ]

    def _rows(self, items: Sequence[Mapping[str, Any]]) -> list[Any]:
        found: dict[int, Any] = {}
        for is_page in (True, False):
            places = [index for index, inputs in enumerate(items) if ("pixels" in inputs) is is_page]
            if places:
                some = [items[index] for index in places]
                embedded = self._model(**self._asked(some), **(self._seen(some) if is_page else {})).embeddings
                for index, inputs, rows in zip(places, some, embedded, strict=True):
                    found[index] = rows[: len(inputs["ids"])].float()
        return [found[index] for index in range(len(items))]

    def _asked(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Each at the left; positions are counted there, and nobody looks at what stands behind."""
        import torch

        from workers.layers.forwards import padded

        asked = padded([inputs["ids"] for inputs in items], None, self._pad, self._model.device)
        if self._model.config.model_type == "colpali":
            asked["token_type_ids"] = torch.zeros_like(asked["input_ids"])
        return asked

    def _seen(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch

        most = max(len(inputs["pixels"]) for inputs in items)
        images = [inputs["pixels"] for inputs in items]
        if "grid" in items[0]:
            images = [np.pad(image, ((0, most - len(image)), (0, 0))) for image in images]
        seen = {"pixel_values": torch.from_numpy(np.stack(images)).to(self._model.device, self._model.dtype)}
        if "grid" in items[0]:
            grids = [[1, *inputs["grid"]] for inputs in items]
            seen["image_grid_thw"] = torch.tensor(grids, device=self._model.device)
        return seen

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self._model).__name__,
            "dims": self.dims,
            "dtype": self._precision,
            "max_tokens": self._limit,
        }


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> PagePreparer:
    return PagePreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> PageEncoder:
    source = transformer.needed(spec, folder)
    about = _read(spec, source)
    report(0.1)
    whole = transformer.read(spec, source, device, auto=_KINDS[about.model_type].architecture, unused=("lm_head",))
    whole.set_attn_implementation("sdpa" if whole._supports_sdpa else "eager")
    model = PageEncoder(whole, about.max_tokens)
    if model.dims != spec.dims.get("multivector", model.dims):
        wrong = f"its entry says {spec.dims['multivector']} dimensions, it gives {model.dims}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    report(1.0)
    return model
