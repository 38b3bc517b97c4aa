"""The layers below a packed forward, each on its own."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from workers.layers import linear, packing, pooling

HEADS, WIDTH = 4, 8


def tensors(tokens: int, key_heads: int = HEADS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    key, value = (torch.randn(1, key_heads, tokens, WIDTH) for _ in range(2))
    return torch.randn(1, HEADS, tokens, WIDTH), key, value


def alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """One sequence by torch's own attention, as (tokens, heads, width)."""
    k, v = (x.repeat_interleave(HEADS // k.shape[1], 1) for x in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, **options)[0].transpose(0, 1)


def by_distance(length: int, causal: bool, window: int | None) -> torch.Tensor | None:
    at = torch.arange(length)
    apart = at[:, None] - at[None, :]
    allowed = apart.abs() < window if window else torch.ones(length, length, dtype=torch.bool)
    return allowed & (apart >= 0) if causal else allowed


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3, 100])
def test_packed_attention_is_each_sequences_own(window: int | None, causal: bool, key_heads: int) -> None:
    lengths = [3, 3, 7, 12]
    pack = packing.lay_out(lengths)
    q, k, v = tensors(sum(lengths), key_heads)
    module = nn.Module()

    with packing.packed(pack):
        found, _ = packing.attend(module, q, k, v, None, is_causal=causal, sliding_window=window)

    parts = [torch.split(x, lengths, 2) for x in (q, k, v)]
    wanted = [
        alone(*each, attn_mask=by_distance(length, causal, window))
        for length, *each in zip(lengths, *parts, strict=True)
    ]
    assert torch.allclose(found[0], torch.cat(wanted), atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3, 100])
def test_tokens_that_are_not_looked_at_look_at_the_others(window: int | None, causal: bool) -> None:
    lengths, seen = [3, 7, 7, 7], [3, 5, 2, 5]
    pack = packing.lay_out(lengths, seen)
    q, k, v = tensors(sum(lengths))

    with packing.packed(pack):
        found, _ = packing.attend(nn.Module(), q, k, v, None, is_causal=causal, sliding_window=window)

    at = np.cumsum([0, *(lengths[index] for index in pack.order)])
    assert pack.order.tolist() == [0, 2, 1, 3]
    for place, index in enumerate(pack.order):
        own = slice(at[place], at[place + 1])
        allowed = by_distance(lengths[index], causal, window)
        assert allowed is not None
        first = seen[index]
        wanted = alone(
            q[:, :, own], k[:, :, own][:, :, :first], v[:, :, own][:, :, :first], attn_mask=allowed[:, :first]
        )
        assert torch.allclose(found[0][own].nan_to_num(), wanted.nan_to_num(), atol=1e-6)


@pytest.mark.parametrize("asked", [{"softcap": 30.0}, {"position_bias": torch.ones(1)}, {"s_aux": torch.ones(1)}])
def test_attention_that_wants_more_is_not_packed(asked: dict[str, Any]) -> None:
    with packing.packed(packing.lay_out([4])), pytest.raises(packing.CannotPack):
        packing.attend(nn.Module(), *tensors(4), attention_mask=None, **asked)


def test_a_mask_of_the_models_own_is_not_packed() -> None:
    with packing.packed(packing.lay_out([4])), pytest.raises(packing.CannotPack):
        packing.attend(nn.Module(), *tensors(4), attention_mask=torch.ones(4, 4))


def test_equal_lengths_become_neighbours() -> None:
    pack = packing.lay_out([5, 2, 9, 2, 5])

    assert pack.order.tolist() == [1, 3, 0, 4, 2]
    assert pack.runs == (packing.Run(0, 2, 2, 2), packing.Run(4, 2, 5, 5), packing.Run(14, 1, 9, 9))
    assert pack.bounds(torch.device("cpu")).tolist() == [0, 2, 4, 9, 14, 23]


def test_positions_begin_anew_with_each_text() -> None:
    pack = packing.lay_out([2, 3])

    assert packing.positions(np.array([7, 8, 7, 8, 9]), pack, 0, 0).tolist() == [0, 1, 0, 1, 2]
    assert packing.positions(np.array([7, 8, 7, 8, 9]), pack, 2, 1).tolist() == [2, 3, 2, 3, 4]


def test_padding_typed_into_a_text_gets_the_padding_position() -> None:
    """As transformers computes them for the RoBERTa kind: cumsum(ids != pad) * (ids != pad) + pad."""
    pack = packing.lay_out([3, 4])
    ids = np.array([7, 1, 8, 1, 7, 1, 9])

    found = packing.positions(ids, pack, 2, 1)

    counted = [np.cumsum(part != 1) * (part != 1) + 1 for part in (ids[:3], ids[3:])]
    assert found.tolist() == np.concatenate(counted).tolist()


def test_pooling_keeps_to_each_text() -> None:
    tokens = torch.tensor([[1.0], [3.0], [10.0], [20.0], [60.0]])
    lengths = np.array([2, 3])

    pooled = {
        mode: pooling.pool([mode], tokens, lengths)[:, 0].tolist() for mode in ("mean", "cls", "lasttoken", "max")
    }

    assert pooled == {"mean": [2.0, 30.0], "cls": [1.0, 10.0], "lasttoken": [3.0, 60.0], "max": [3.0, 60.0]}


class Intermediate(nn.Module):
    """The shape of BERT's, as transformers names its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, 16)
        activation: Any = nn.Module()
        activation.act = functional.gelu
        self.intermediate_act_fn = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.intermediate_act_fn(self.dense(x))
        return found


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")
def test_a_reordered_layer_computes_the_same() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(Intermediate(), nn.Linear(16, WIDTH, bias=False)))
    x = torch.randn(1, 5, WIDTH)
    wanted = model[1][1](functional.gelu(model[1][0].dense(model[0](x))))

    with torch.inference_mode():
        assert linear.reorder(model) == 3
        found = model(x)

    assert torch.allclose(found, wanted, atol=1e-6)
    assert isinstance(model[1][0].intermediate_act_fn, nn.Identity)
