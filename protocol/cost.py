"""What an item is taken to cost before anybody has tokenized it, the same whoever publishes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.spec import ModelSpec

CHARACTERS_PER_TOKEN = 4
SPECIAL_TOKENS = 2


def estimate_cost(items: Sequence[Mapping[str, Any]], spec: ModelSpec) -> int:
    """In padded-token equivalents, from lengths alone: only the worker has the tokenizer."""
    longest = spec.max_tokens or 1 << 30
    return sum(min(_tokens(item), longest) for item in items)


def _tokens(item: Mapping[str, Any]) -> int:
    if "token_ids" in item:
        return len(item["token_ids"]) + SPECIAL_TOKENS
    return len(item.get("text", "")) // CHARACTERS_PER_TOKEN + SPECIAL_TOKENS
