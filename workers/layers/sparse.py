"""Reads what a sparse encoder's folder says of itself; no weights but a static query's, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protocol.spec import ModelSpec
from workers.layers import checkpoint
from workers.layers.checkpoint import Checkpoint, read_json
from workers.weights import files
from workers.weights.failures import CORRUPT, UNSUPPORTED, load_failed

POOLINGS = ("max", "sum")
ACTIVATIONS = ("relu", "log1p_relu")
_TASKS = ("fill-mask",)
ROUTES = "router_config.json"


@dataclass(frozen=True, slots=True)
class SparseCheckpoint:
    """`static` is the folder of weights that make up a query's vector by themselves."""

    text: Checkpoint
    pooling: str = "max"
    twice: bool = False  # log(1 + log(1 + relu)), as OpenSearch's models want it
    static: Path | None = None

    def read_static(self, model: str) -> np.ndarray | None:
        """One weight per word, float32. Raises ModelLoadFailed."""
        if self.static is None:
            return None
        from safetensors.numpy import load_file

        weights = load_file(self.static / files.SINGLE) if (self.static / files.SINGLE).is_file() else {}
        if "weight" not in weights or weights["weight"].ndim != 1:
            raise load_failed(model, CORRUPT, f"its file {self.static.name}/{files.SINGLE} holds no weight per word")
        row: np.ndarray = weights["weight"].astype(np.float32)
        return row


def read_checkpoint(spec: ModelSpec, folder: Path) -> SparseCheckpoint:
    """Raises ModelLoadFailed, naming the file, for anything it cannot honour."""
    if (folder / ROUTES).is_file():
        text, settings, static = _read_router(spec, folder)
    else:
        text, static = checkpoint.read(spec, folder, tasks=_TASKS, own=("SpladePooling",)), None
        pooled = [inside for _, inside in text.modules]
        settings = read_json(spec.model, pooled[-1] / "config.json", {}) if pooled else {}
    pooling, activation = settings.get("pooling_strategy", "max"), settings.get("activation_function", "relu")
    if pooling not in POOLINGS or activation not in ACTIVATIONS:
        raise load_failed(spec.model, UNSUPPORTED, f"its pooling {pooling!r} of {activation!r} is of an unknown kind")
    return SparseCheckpoint(text, pooling, activation == "log1p_relu", static)


def _read_router(spec: ModelSpec, folder: Path) -> tuple[Checkpoint, Mapping[str, Any], Path]:
    """Documents by a SPLADE model, queries by weights alone; no other routes are known."""
    config = read_json(spec.model, folder / ROUTES, {})
    routes = config.get("structure", {})
    kinds = {name: str(kind).rsplit(".", 1)[-1] for name, kind in config.get("types", {}).items()}
    by_kind = {kinds.get(name, name): folder / name for names in routes.values() for name in names}
    encoder = by_kind.get("Transformer") or by_kind.get("MLMTransformer")
    if set(routes) != {"query", "document"} or encoder is None or "SparseStaticEmbedding" not in by_kind:
        raise load_failed(spec.model, UNSUPPORTED, "its file router_config.json has routes of an unknown kind")
    settings = read_json(spec.model, by_kind["SpladePooling"] / "config.json", {}) if "SpladePooling" in by_kind else {}
    text = checkpoint.read(spec, encoder, tasks=_TASKS, own=("SpladePooling",))
    return text, settings, by_kind["SparseStaticEmbedding"]
