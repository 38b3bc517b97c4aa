"""Refuses a model of a library that leaves weights to chance without a word."""

from pathlib import Path
from typing import Any

from protocol.spec import ModelSpec
from workers.layers import transformer
from workers.weights.failures import UNSUPPORTED, load_failed

_COMPUTED = ("position_ids", "token_type_ids")  # buffers that every model makes itself


def refuse_missing(spec: ModelSpec, file: Path, model: Any) -> None:
    """`file` is the safetensors file that all its weights should be in. Raises ModelLoadFailed."""
    from safetensors import safe_open

    with safe_open(file, framework="np") as opened:
        saved = {*opened.keys(), *(opened.metadata() or {})}  # metadata name weights that share another's place
    allowed = (*transformer.UNUSED, *_COMPUTED)
    wanted = (name for name in model.state_dict() if not any(part in name for part in allowed))
    missing = sorted(name for name in wanted if name not in saved)
    if missing:
        raise load_failed(spec.model, UNSUPPORTED, f"weights missing: {', '.join(missing[:5])}")
