"""Text encoders: one dense vector per text, from any encoder or decoder checkpoint that transformers reads.

Everything a checkpoint says of itself is honoured (pooling, normalisation, prompts, length; `workers.layers.checkpoint`
lists what an entry's `load:` may add). Padding-free where a probe at load proves it equal.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import checkpoint, vectors
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

log = logging.getLogger("shoal.text_encoder")

_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the names sentence-transformers looks for, in its order
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# config.json's model_type → the class of transformers that is only its encoder
_ENCODER_HALVES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}


class TextPreparer:
    """Texts or token ids in, vectors out. `key` stays empty: no option changes how a forward runs."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._checkpoint = checkpoint.read(spec, folder)
        self._tokenizer = TextTokenizer(spec.model, self._checkpoint)
        if not files.shards(self._checkpoint.folder):
            raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = EncodeOptions.from_wire(payload.options)
        if wanted.output_types != ("dense",):
            raise InvalidInput(f"model {self._model!r} gives dense vectors only", param="options.output_types")
        prompt = self._prompt(wanted)
        contents = self._read(payload.items, prompt)
        skipped = self._tokenizer.prompt_length(prompt) if prompt and not self._checkpoint.include_prompt else 0
        return [
            content if isinstance(content, ShoalError) else self._prepare(content, skipped, wanted.overflow)
            for content in contents
        ]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted, output = EncodeOptions.from_wire(options), outputs[0]
        dense = vectors.finish(
            self._model,
            output["dense"],
            precision=output["precision"],
            dimensions=wanted.dimensions,
            normalize=self._checkpoint.normalize if wanted.normalize is None else wanted.normalize,
            dtype=wanted.output_dtype,
        )
        return {"dense": dense}

    def _prompt(self, wanted: EncodeOptions) -> str:
        """What is put before every text: the caller's own prompt, an instruction, or one of the model's prompts."""
        if wanted.prompt is not None:
            return wanted.prompt
        if wanted.instruction is not None and wanted.is_query is not False:
            template = self._checkpoint.instruction_template
            if template is None:
                raise InvalidInput(
                    f"model {self._model!r} takes no instruction; put literal text before inputs with 'prompt'",
                    param="options.instruction",
                )
            return template.replace("{instruction}", wanted.instruction)
        prompts = self._checkpoint.prompts
        if wanted.is_query is None:
            return prompts.get(self._checkpoint.default_prompt or "", "")
        names = ("query",) if wanted.is_query else _DOCUMENT_PROMPTS
        return next((prompts[name] for name in names if name in prompts), "")

    def _read(self, items: Sequence[Mapping[str, Any]], prompt: str) -> list[list[int] | ShoalError]:
        """Each item's tokens without special ones; all texts are tokenized in one call."""
        texts = [prompt + item["text"] for item in items if isinstance(item.get("text"), str)]
        read = iter(self._tokenizer.read(texts))
        return [
            next(read) if isinstance(item.get("text"), str) else self._read_ids(item.get("token_ids"), prompt)
            for item in items
        ]

    def _read_ids(self, ids: Any, prompt: str) -> list[int] | ShoalError:
        """Ids of the model's own vocabulary, read as the text they stand for."""
        if not isinstance(ids, list | tuple):
            return InvalidInput(f"model {self._model!r} reads text", param="text")
        size = self._tokenizer.vocabulary
        for index, token in enumerate(ids):
            if not 0 <= token < size:
                return InvalidInput(f"token_ids[{index}] must be below {size}, not {token}", param="token_ids")
        before = self._tokenizer.read([prompt])[0] if prompt else []
        return [*before, *self._tokenizer.unwrap(list(ids))]

    def _prepare(self, content: list[int], skipped: int, overflow: str) -> Parts | ShoalError:
        tokens = self._tokenizer.wrap(content)
        if tokens.is_truncated and overflow == "error":
            return InputTooLong(
                f"the text has {tokens.whole} tokens; model {self._model!r} reads at most {self._tokenizer.limit}",
                extra={"tokens": tokens.whole, "limit": self._tokenizer.limit},
            )
        count = len(tokens.ids)
        inputs = {"ids": tokens.ids, "skipped": skipped} if skipped else {"ids": tokens.ids}
        return [Prepared(inputs, cost=count, tokens=count, truncated=tokens.is_truncated)]


class TextEncoder:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(self, about: checkpoint.Checkpoint, settled: Any, heads: Any, precision: str) -> None:
        self.packed: bool = settled.forward.packed
        self._about = about
        self._settled = settled
        self._heads = heads  # Dense modules, as one torch module
        self._precision = precision
        self.bytes = _bytes_of(settled.model) + _bytes_of(heads)
        self.dims = len(self.forward([{"ids": np.zeros(1, np.int32)}], None)[0]["dense"])

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        import torch

        from workers.layers.pooling import pool

        with torch.inference_mode():
            states = self._settled.forward.run([inputs["ids"] for inputs in batch])
            skipped = np.array([batch[index].get("skipped", 0) for index in states.order])
            rows = self._heads(pool(self._about.pooling, states.tokens, states.lengths, skipped)).float().cpu().numpy()
        ordered = np.empty_like(rows)
        ordered[states.order] = rows
        return [{"dense": row, "precision": self._precision} for row in ordered]

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self._settled.model).__name__,
            "dims": self.dims,
            "dtype": self._precision,
            "pooling": "+".join(self._about.pooling),
            "normalize": self._about.normalize,
            "max_tokens": self._about.max_tokens,
            "packed": self.packed,
            "padded_because": self._settled.why,
            "reordered_linear": self._settled.reordered,
        }


def warm() -> None:
    import workers.layers.probe  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> TextPreparer:
    return TextPreparer(spec, _needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    """In the dtype that `load` will use; Dense modules are float32 everywhere."""
    about = checkpoint.read(spec, _needed(spec, folder))
    heads = sum(files.count_numbers(dense.folder) for dense in about.dense)
    return files.count_numbers(about.folder) * _BYTES[_dtype(spec, device)] + heads * _BYTES["float32"]


def _dtype(spec: ModelSpec, device: str) -> str:
    """A CPU computes in float32 whatever the entry says: half precision is slower there, not faster."""
    return "float32" if device == "cpu" else str(spec.load.get("dtype", "float32"))


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> TextEncoder:
    from workers.layers import probe

    about = checkpoint.read(spec, _needed(spec, folder))
    steps = iter((0.5, 0.8))
    report(0.1)
    settled = probe.settle(
        lambda: read_model(spec, about, device),
        about.config.get("text_config", about.config),
        about.max_tokens,
        about.position_offset,
        lambda: report(next(steps, 0.8)),
    )
    heads = _read_heads(about, settled.model.device)
    model = TextEncoder(about, settled, heads, str(settled.model.dtype).removeprefix("torch."))
    if model.dims != spec.dims.get("dense", model.dims):
        wrong = f"its entry says {spec.dims['dense']} dimensions, it gives {model.dims}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    report(1.0)
    return model


def _needed(spec: ModelSpec, folder: Path | None) -> Path:
    if folder is None:
        raise load_failed(spec.model, UNSUPPORTED, "its entry says no source of its files")
    return folder


def read_model(spec: ModelSpec, about: checkpoint.Checkpoint, device: str) -> Any:
    """With attention that any model has. Refuses a checkpoint that leaves a weight to chance."""
    import torch
    import transformers

    quiet: Any = transformers.utils.logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()  # its report of missing weights: what matters of it is checked below
    name = _ENCODER_HALVES.get(about.model_type, "AutoModel")
    model, found = getattr(transformers, name).from_pretrained(
        about.folder,
        dtype=getattr(torch, _dtype(spec, device)),
        attn_implementation="eager",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=spec.remote_code,
        output_loading_info=True,
    )
    # The pooler behind [CLS] serves BERT's training task; no vector comes from it, and many checkpoints leave it out.
    missing = [key for key in found["missing_keys"] if "pooler." not in key and not key.endswith("position_ids")]
    if missing or found["mismatched_keys"]:
        names = [*sorted(missing), *(key for key, *_ in found["mismatched_keys"])]
        wrong = f"weights missing or of the wrong shape: {', '.join(names[:5])}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    return model.to(device).eval()


def _read_heads(about: checkpoint.Checkpoint, device: Any) -> Any:
    """The Dense modules behind pooling; computed in float32, like pooling."""
    from safetensors.torch import load_file
    from torch import nn

    layers: list[nn.Module] = []
    for dense in about.dense:
        weights = load_file(dense.folder / files.SINGLE)
        rows, columns = weights["linear.weight"].shape
        layer = nn.Linear(columns, rows, bias="linear.bias" in weights)
        layer.load_state_dict({name.removeprefix("linear."): tensor.float() for name, tensor in weights.items()})
        layers += [layer, getattr(nn, dense.activation)()]
    return nn.Sequential(*layers).to(device).eval()


def _bytes_of(model: Any) -> int:
    from workers.layers.linear import ReorderedLinear

    plain: int = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])
    return plain + sum(layer.bytes for layer in model.modules() if isinstance(layer, ReorderedLinear))
