"""Text encoders: one dense vector per text, from any encoder or decoder checkpoint that transformers reads.

Everything a checkpoint says of itself is honoured (pooling, normalisation, prompts, length; `workers.layers.checkpoint`
lists what an entry's `load:` may add). Padding-free where a probe at load proves it equal.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions
from protocol.spec import ModelSpec
from workers.families import Parts
from workers.layers import checkpoint, parking, transformer, vectors
from workers.layers.texts import TextReader, by_chunk
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

FLOAT32_BYTES = 4

# config.json's model_type → the class of transformers that is only its encoder
_ENCODER_HALVES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}


class TextPreparer:
    """Texts or token ids in, vectors out. `key` stays empty: no option changes how a forward runs."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._checkpoint = checkpoint.read(spec, folder)
        self._reader = TextReader(spec.model, self._checkpoint)
        if not files.shards(self._checkpoint.folder):
            raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        if EncodeOptions.from_wire(payload.options).output_types != ("dense",):
            raise InvalidInput(f"model {self._model!r} gives dense vectors only", param="options.output_types")
        return self._reader.read(payload)

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        normalize = self._checkpoint.normalize
        return by_chunk(outputs, parts, lambda output, _: vectors.encoded(self._model, output, options, normalize))


class TextEncoder:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(self, about: checkpoint.Checkpoint, settled: Any, heads: Any, precision: str) -> None:
        self.packed: bool = settled.forward.packed
        self._about = about
        self._settled = settled
        self._heads = heads  # Dense modules, as one torch module
        self._precision = precision
        self.bytes = transformer.bytes_of(settled.model, heads)
        self.host_copy = parking.TorchCopy.of(settled.model, heads)
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
    return TextPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    """In the dtype that `load` will use; Dense modules are float32 everywhere."""
    about = checkpoint.read(spec, transformer.needed(spec, folder))
    heads = sum(files.count_numbers(dense.folder) for dense in about.dense)
    return transformer.estimate_bytes(spec, about.folder, device) + heads * FLOAT32_BYTES


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> TextEncoder:
    from workers.layers import probe

    about = checkpoint.read(spec, transformer.needed(spec, folder))
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
    model = TextEncoder(about, settled, heads, transformer.dtype_of(settled.model))
    if model.dims != spec.dims.get("dense", model.dims):
        wrong = f"its entry says {spec.dims['dense']} dimensions, it gives {model.dims}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    report(1.0)
    return model


def read_model(spec: ModelSpec, about: checkpoint.Checkpoint, device: str) -> Any:
    """The encoder alone."""
    return transformer.read(spec, about.folder, device, auto=_ENCODER_HALVES.get(about.model_type, "AutoModel"))


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
