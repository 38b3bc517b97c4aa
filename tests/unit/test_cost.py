"""What items are taken to cost before they are tokenized."""

import pytest

from protocol.cost import SPECIAL_TOKENS, estimate_cost
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
def test_cost_follows_lengths_up_to_the_models_limit(items: list[dict[str, object]], cost: int) -> None:
    assert estimate_cost(items, SPEC) == cost
