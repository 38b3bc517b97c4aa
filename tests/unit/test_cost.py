"""What items are taken to cost before they are tokenized."""

from typing import Any

import pytest

from protocol.cost import BYTES_PER_COST, IMAGE_COST, SPECIAL_TOKENS, estimate_cost
from protocol.messages import Payload
from protocol.spec import ModelSpec

SPEC = ModelSpec("acme/fake", "fake", ("encode",), max_tokens=16)


@pytest.mark.parametrize(
    ("items", "cost"),
    [
        ([{"text": "x" * 40}], 10 + SPECIAL_TOKENS),
        ([{"token_ids": [1, 2, 3]}], 3 + SPECIAL_TOKENS),
        ([{"text": ""}], SPECIAL_TOKENS),
        ([{"text": "x" * 4000}], 16),  # longer is cut
        ([{"text": "x" * 40}, {"token_ids": [1]}], 10 + 1 + 2 * SPECIAL_TOKENS),
        ([], 0),
    ],
)
def test_cost_follows_lengths_up_to_the_models_limit(items: list[dict[str, Any]], cost: int) -> None:
    assert estimate_cost(Payload(items), SPEC) == cost


def test_a_pair_costs_the_query_and_the_item() -> None:
    payload = Payload([{"text": "x" * 8}, {"text": ""}], query={"text": "x" * 16})
    assert estimate_cost(payload, SPEC) == (4 + 2 + 2 * SPECIAL_TOKENS) + (4 + 2 * SPECIAL_TOKENS)


def test_what_is_extracted_from_is_read_whole() -> None:
    reader = ModelSpec("acme/reader", "fake", ("extract",), max_tokens=16)
    assert estimate_cost(Payload([{"text": "x" * 4000}]), reader) == 1000 + SPECIAL_TOKENS


@pytest.mark.parametrize(
    ("item", "cost"),
    [
        ({"images": [{"data": b"x"}, {"data": b"y"}]}, 2 * IMAGE_COST),
        ({"audio": {"data": bytes(6400)}}, 6400 // BYTES_PER_COST["audio"]),
        ({"document": {"data": bytes(51200)}}, 51200 // BYTES_PER_COST["document"]),
        ({"document": {"url": "https://example.org/a.pdf"}}, 0),
    ],
)
def test_media_cost_by_their_number_or_bytes(item: dict[str, Any], cost: int) -> None:
    reader = ModelSpec("acme/reader", "fake", ("extract",))
    assert estimate_cost(Payload([item]), reader) == cost + SPECIAL_TOKENS
