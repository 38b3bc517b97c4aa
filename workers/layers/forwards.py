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

    def run(
        self,
        texts: Sequence[np.ndarray],
        types: Sequence[np.ndarray] | None = None,
        seen: Sequence[int] | None = None,
    ) -> States:
        """`types` has the token type of every token; None for models that were never taught any. `seen` says how many
        tokens of each text, from its first, are looked at by the others; None: all.
        """
        ...


class Packed:
    """All texts laid end to end; costs the plain sum of their lengths."""

    packed = True

    def __init__(self, model: Any, position_offset: int) -> None:
        model.set_attn_implementation(packing.PACKED)
        self._model = model
        self._offset = position_offset
        self._pad = _pad(model)

    def run(
        self,
        texts: Sequence[np.ndarray],
        types: Sequence[np.ndarray] | None = None,
        seen: Sequence[int] | None = None,
    ) -> States:
        pack = packing.lay_out([len(text) for text in texts], seen)
        ids = _end_to_end(texts, pack)
        places = packing.positions(ids, pack, self._offset, self._pad)
        asked = {"input_ids": ids, "position_ids": places}
        if types is not None:
            asked["token_type_ids"] = _end_to_end(types, pack)
        device = self._model.device
        with packing.packed(pack):
            out = self._model(
                **{name: torch.from_numpy(values)[None].to(device) for name, values in asked.items()},
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

    def run(
        self,
        texts: Sequence[np.ndarray],
        types: Sequence[np.ndarray] | None = None,
        seen: Sequence[int] | None = None,
    ) -> States:
        lengths = np.array([len(text) for text in texts])
        asked = padded(texts, types, self._pad, self._model.device)
        real = asked["attention_mask"].bool()
        if seen is not None:
            looked = np.arange(lengths.max())[None, :] < np.asarray(seen)[:, None]
            asked["attention_mask"] = torch.from_numpy(looked.astype(np.int64)).to(real.device)
        tokens = self._model(**asked, **_no_cache(self._model)).last_hidden_state
        return States(tokens.flatten(0, 1) if real.all() else tokens[real], lengths, np.arange(len(texts)))


class Whole:
    """A model with its head, padded, as transformers runs it; for heads that do not work on tokens laid end to end."""

    def __init__(self, model: Any) -> None:
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        self._model = model
        self._pad = _pad(model)

    def logits(self, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> torch.Tensor:
        found: torch.Tensor = self._model(**padded(texts, types, self._pad, self._model.device)).logits.float()
        return found

    def rows(self, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> list[torch.Tensor]:
        """The logits of each text's own tokens."""
        return [row[: len(text)] for row, text in zip(self.logits(texts, types), texts, strict=True)]


def padded(
    texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None, pad: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """What a model of transformers is asked with; each text stands at the left."""
    lengths = np.array([len(text) for text in texts])
    real = np.arange(lengths.max())[None, :] < lengths[:, None]
    asked = {"input_ids": np.full(real.shape, pad, np.int64), "attention_mask": real.astype(np.int64)}
    asked["input_ids"][real] = np.concatenate(texts)
    if types is not None:
        asked["token_type_ids"] = np.zeros(real.shape, np.int64)
        asked["token_type_ids"][real] = np.concatenate(types)
    return {name: torch.from_numpy(values).to(device) for name, values in asked.items()}


def one_by_one(model: Any, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> torch.Tensor:
    """What every way of running the model must give: each text alone, by transformers' plainest code."""
    return torch.cat([out.last_hidden_state[0] for out in alone(model, texts, types)])


def alone(model: Any, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> list[Any]:
    """The model's answer to each text by itself."""
    outs = []
    for index, text in enumerate(texts):
        asked = {"input_ids": text} if types is None else {"input_ids": text, "token_type_ids": types[index]}
        tensors = {name: torch.from_numpy(ids.astype(np.int64))[None].to(model.device) for name, ids in asked.items()}
        outs.append(model(**tensors, **_no_cache(model)))
    return outs


def _end_to_end(rows: Sequence[np.ndarray], pack: packing.Pack) -> np.ndarray:
    joined: np.ndarray = np.concatenate([rows[index] for index in pack.order]).astype(np.int64)
    return joined


def _pad(model: Any) -> int:
    return int(getattr(model.config, "pad_token_id", None) or 0)


def _no_cache(model: Any) -> dict[str, bool]:
    """Decoders keep keys and values for a next token, which an encoder never asks for."""
    return {"use_cache": False} if getattr(model.config, "use_cache", False) else {}
