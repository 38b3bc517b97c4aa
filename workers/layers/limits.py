"""How many tokens a checkpoint's encoder reads at once, by its tokenizer and its positions. No torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.layers.checkpoint import OFFSET_POSITIONS, read_json

UNBOUNDED = 1 << 20  # tokenizers without a limit say 10^30


def token_limit(model: str, folder: Path, encoder: Mapping[str, Any]) -> int:
    """Special tokens included; `encoder` is the config of the encoder. Relative positions alone have no end."""
    positions = None if encoder.get("position_biased_input") is False else encoder.get("max_position_embeddings")
    if positions and encoder.get("model_type") in OFFSET_POSITIONS:
        positions -= int(encoder.get("pad_token_id") or 0) + 1
    own = read_json(model, folder / "tokenizer_config.json", {}).get("model_max_length")
    return int(min(limit for limit in (own, positions, UNBOUNDED) if limit))
