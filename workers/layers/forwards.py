"""Two ways to run a transformer over texts of different lengths; both answer all tokens end to end, text by text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from workers.layers import packing


@dataclass(frozen=True, slots=True)
class States:
    """The last layer's output: `lengths[i]` tokens for the text that the caller gave at `order[i]`, and so on."""

    tokens: torch.Tensor  # (all tokens, width)
    lengths: np.ndarray
    order: np.ndarray


class Forward(Protocol):
    packed: bool

    def run(self, texts: Sequence[np.ndarray]) -> States: ...


class Packed:
    """All texts laid end to end; costs the plain sum of their lengths."""

    packed = True

    def __init__(self, model: Any, position_offset: int) -> None:
        model.set_attn_implementation(packing.PACKED)
        self._model = model
        self._offset = position_offset
        self._pad = _pad(model)

    def run(self, texts: Sequence[np.ndarray]) -> States:
        pack = packing.lay_out([len(text) for text in texts])
        ids = np.concatenate([texts[index] for index in pack.order]).astype(np.int64)
        places = packing.positions(ids, pack, self._offset, self._pad)
        device = self._model.device
        with packing.packed(pack):
            out = self._model(
                input_ids=torch.from_numpy(ids)[None].to(device),
                position_ids=torch.from_numpy(places)[None].to(device),
                **_no_cache(self._model),
            )
        return States(out.last_hidden_state[0], pack.lengths, pack.order)


class Padded:
    """All texts padded to the longest; costs the longest times their number."""

    packed = False

    def __init__(self, model: Any) -> None:
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        self._model = model
        self._pad = _pad(model)

    def run(self, texts: Sequence[np.ndarray]) -> States:
        lengths = np.array([len(text) for text in texts])
        real = np.arange(lengths.max())[None, :] < lengths[:, None]
        ids = np.full(real.shape, self._pad, np.int64)
        ids[real] = np.concatenate(texts)
        device = self._model.device
        mask = torch.from_numpy(real).to(device)
        out = self._model(
            input_ids=torch.from_numpy(ids).to(device), attention_mask=mask.long(), **_no_cache(self._model)
        )
        tokens = out.last_hidden_state
        return States(tokens.flatten(0, 1) if real.all() else tokens[mask], lengths, np.arange(len(texts)))


def one_by_one(model: Any, texts: Sequence[np.ndarray]) -> torch.Tensor:
    """What every way of running the model must give: each text alone, by transformers' plainest code."""
    device = model.device
    alone = [
        model(input_ids=torch.from_numpy(text.astype(np.int64))[None].to(device), **_no_cache(model)) for text in texts
    ]
    return torch.cat([out.last_hidden_state[0] for out in alone])


def _pad(model: Any) -> int:
    return int(getattr(model.config, "pad_token_id", None) or 0)


def _no_cache(model: Any) -> dict[str, bool]:
    """Decoders keep keys and values for a next token, which an encoder never asks for."""
    return {"use_cache": False} if getattr(model.config, "use_cache", False) else {}
