"""What a sequence classifier's folder says of itself: its labels, and what makes scores of its logits. No torch."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import NonFiniteOutput
from protocol.spec import ModelSpec
from workers.layers import checkpoint, transformer
from workers.layers.checkpoint import Checkpoint
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

SIGMOID, SOFTMAX, BARE = "sigmoid", "softmax", "bare"

_SHARED_OPTIONS = ("dtype",)
_TASK = "sequence-classification"  # sentence-transformers' word for it


@dataclass(frozen=True, slots=True)
class Labelled:
    """A classifier's checkpoint."""

    checkpoint: Checkpoint
    labels: tuple[str, ...]  # by the logit's position

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config


def read(spec: ModelSpec, folder: Path | None, options: Collection[str] = ()) -> Labelled:
    """`options` are those of the entry's `load:` that the family reads itself. Raises ModelLoadFailed."""
    shared = {name: value for name, value in spec.load.items() if name not in options}
    for name in shared:
        if name not in _SHARED_OPTIONS:
            known = ", ".join([*_SHARED_OPTIONS, *options])
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: {known}")
    found = checkpoint.read(
        replace(spec, load=shared), transformer.needed(spec, folder), tasks=(_TASK, checkpoint.FEATURES), own=()
    )
    if found.pooling or found.dense:
        raise load_failed(spec.model, UNSUPPORTED, "its modules.json puts modules of its own behind the transformer")
    if not files.shards(found.folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return Labelled(found, _labels(found.config))


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """As transformers counts them: two if the file says nothing."""
    named = config.get("id2label")
    count = len(named) if named else int(config.get("num_labels") or 2)
    names = {int(position): str(label) for position, label in (named or {}).items()}
    return tuple(names.get(position, f"LABEL_{position}") for position in range(count))


def has_sigmoid(model: str, folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the scores of a cross-encoder are sigmoids of its logits, in the order sentence-transformers asks."""
    published = checkpoint.read_json(model, folder / "config_sentence_transformers.json", {})
    places = (
        published.get("activation_fn"),
        (config.get("sentence_transformers") or {}).get("activation_fn"),
        config.get("sbert_ce_default_activation_function"),
    )
    said = next((place for place in places if place), "")
    if not said.startswith("torch."):  # code from elsewhere is not run; sentence-transformers then takes its default
        return True
    name = said.rsplit(".", 1)[-1]
    if name not in ("Sigmoid", "Identity"):
        raise load_failed(model, UNSUPPORTED, f"it asks for the activation {name}; there are Sigmoid and Identity")
    return name == "Sigmoid"


def activation(config: Mapping[str, Any], labels: int) -> str:
    """What transformers' own pipeline makes scores with."""
    kind = config.get("problem_type")
    if kind == "regression":
        return BARE
    return SIGMOID if kind == "multi_label_classification" or labels == 1 else SOFTMAX


def scores(model: str, logits: np.ndarray, how: str) -> np.ndarray:
    """Along the last axis, in float64. Raises NonFiniteOutput."""
    rows = logits.astype(np.float64)
    if not np.isfinite(rows).all():
        raise NonFiniteOutput(f"model {model!r} gave a score that is no number")
    if how == SOFTMAX:
        powers = np.exp(rows - rows.max(-1, keepdims=True))
        shares: np.ndarray = powers / powers.sum(-1, keepdims=True)
        return shares
    return np.vectorize(sigmoid, otypes=[np.float64])(rows) if how == SIGMOID else rows


def sigmoid(x: float) -> float:
    """Without overflow on either side."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    power = math.exp(x)
    return power / (1.0 + power)
