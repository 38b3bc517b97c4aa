"""What a request is taken to cost before anybody has looked into its items, the same whoever publishes it."""

from collections.abc import Mapping
from typing import Any

from protocol.messages import Payload
from protocol.spec import ModelSpec

CHARACTERS_PER_TOKEN = 4
SPECIAL_TOKENS = 2
IMAGE_COST = 256  # about the patches of one; models scale all images to their own size
# Bytes of media that are taken for one token; how many pages, pixels or seconds they hold only the worker sees
BYTES_PER_COST = {"audio": 640, "video": 4096, "document": 256}


def estimate_cost(payload: Payload, spec: ModelSpec) -> int:
    """In padded-token equivalents, from lengths alone: workers learn how far off that is."""
    longest = spec.max_tokens if spec.max_tokens and _is_cut(spec) else 1 << 30
    query = 0 if payload.query is None else _cost(payload.query)
    return sum(min(query + _cost(item), longest) for item in payload.items)


def _is_cut(spec: ModelSpec) -> bool:
    """Whether what is longer than the model reads is cut off; to extract, it is read piece by piece."""
    return "extract" not in spec.primitives


def _cost(item: Mapping[str, Any]) -> int:
    if "token_ids" in item:
        cost = len(item["token_ids"]) + SPECIAL_TOKENS
    else:
        cost = len(item.get("text", "")) // CHARACTERS_PER_TOKEN + SPECIAL_TOKENS
    cost += IMAGE_COST * len(item.get("images", ()))
    for kind, size in BYTES_PER_COST.items():
        if kind in item:
            cost += len(item[kind].get("data", b"")) // size
    return cost
