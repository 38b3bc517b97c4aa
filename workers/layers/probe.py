"""Decides at load how a model runs: packed if that gives what each text alone gives, else padded if that does.

The sequences are longer than two local windows, as long as the model reads where that is cheap, and some are of equal
length, so that every branch of the packed attention is seen.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workers.layers import linear
from workers.layers.forwards import Forward, Packed, Padded, one_by_one

log = logging.getLogger("shoal.probe")

_SHORT = (1, 3, 3, 17, 40)
_CHEAP = 512  # tokens that any model reads in a moment
_LONGEST = 1200  # more is too slow at load for large models on a CPU
_TOLERANCE = {torch.float32: 2e-4}  # of a token's norm; rounding gives about 1e-6
_HALF_TOLERANCE = 5e-2


class Unequal(RuntimeError):
    """No way of running the model in batches gives what it gives for each text alone."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What the probe reads."""

    ids: list[np.ndarray]
    types: list[np.ndarray] | None

    @classmethod
    def drawn(cls, config: Mapping[str, Any], limit: int, with_types: bool) -> "Texts":
        """The second half of a text, if it has types, is of the second one."""
        ids = sequences(config, limit)
        types = [(np.arange(len(text)) * 2 >= len(text)).astype(np.int32) for text in ids]
        return cls(ids, types if with_types else None)


@dataclass(frozen=True, slots=True)
class Settled:
    """The way that was found; `why` says why not the faster ones."""

    forward: Forward
    model: Any
    reordered: bool
    why: str | None


def settle(
    read: Callable[[], Any],
    config: Mapping[str, Any],
    limit: int,
    position_offset: int,
    progress: Callable[[], None],
    with_types: bool = False,
) -> Settled:
    """`read` gives the model with eager attention; it is called again if reordering its layers broke it.

    `with_types`: the model will be told token types, so the probe tells it some.
    """
    model = read()
    progress()
    texts = Texts.drawn(config, limit, with_types)
    with torch.inference_mode():
        wanted = one_by_one(model, texts.ids, texts.types)
        if not torch.isfinite(wanted).all():
            raise Unequal("the model's output is not finite")
        progress()
        reasons: list[str] = []
        if linear.is_worth_it(model):
            linear.reorder(model)
            settled = _settle(model, texts, wanted, position_offset, _cannot_pack(model, config, limit), True, reasons)
            if settled is not None:
                return settled
            model = read()
        settled = _settle(model, texts, wanted, position_offset, _cannot_pack(model, config, limit), False, reasons)
        if settled is not None:
            return settled
    raise Unequal("; ".join(reasons))


def sequences(config: Mapping[str, Any], limit: int) -> list[np.ndarray]:
    """Ids of which none is padding, the same at every load."""
    chance = np.random.default_rng(0)
    window = _window(config) or 0
    longest = min(limit, max(_CHEAP, 2 * window + 9), _LONGEST)
    pad = config.get("pad_token_id")
    ids = np.array([token for token in range(min(config["vocab_size"], 4096)) if token != pad], np.int32)
    return [chance.choice(ids, length) for length in (*_SHORT, longest) if length <= limit]


def _settle(
    model: Any,
    texts: Texts,
    wanted: torch.Tensor,
    position_offset: int,
    cannot_pack: str | None,
    reordered: bool,
    reasons: list[str],
) -> Settled | None:
    """The first way that is equal; what was wrong with others is added to `reasons`."""
    ways: list[tuple[str, Callable[[], Forward]]] = [("padded", lambda: Padded(model))]
    if cannot_pack is None:
        ways.insert(0, ("packed", lambda: Packed(model, position_offset)))
    else:
        reasons.append(cannot_pack)
    for name, make in ways:
        try:
            forward = make()
            states = forward.run(texts.ids, texts.types)
            error = _difference(states.tokens, wanted, states.lengths, states.order)
        except Exception as failure:  # the model's own code, called in a way it may not know
            log.info("way refused", extra={"way": name, "reason": f"{type(failure).__name__}: {failure}"})
            reasons.append(f"{name}: {failure}"[:200])
            continue
        if error <= _TOLERANCE.get(wanted.dtype, _HALF_TOLERANCE):
            return Settled(forward, model, reordered, None if forward.packed else "; ".join(reasons))
        reasons.append(f"{name} differs from one by one by {error:.1e}")
    return None


def _difference(tokens: torch.Tensor, wanted: torch.Tensor, lengths: np.ndarray, order: np.ndarray) -> float:
    """The largest error of any token, as a share of its norm."""
    parts = torch.split(tokens, lengths.tolist())
    back = torch.cat([parts[place] for place in np.argsort(order)]).float()
    error = (back - wanted.float()).norm(dim=1) / wanted.float().norm(dim=1).clamp(min=1e-6)
    worst = float(error.max())
    return worst if np.isfinite(worst) else float("inf")


def _cannot_pack(model: Any, config: Mapping[str, Any], limit: int) -> str | None:
    """What rules packing out before it is tried."""
    window = _window(config)
    if window and limit > window and 2 * window + 9 > _LONGEST:
        return f"a local window of {window} tokens is longer than the probe reads"
    if model.device.type == "cuda" and model.dtype == torch.float32:
        return "variable-length attention on a GPU needs float16 or bfloat16"
    return None


def _window(config: Mapping[str, Any]) -> int | None:
    """The local window, where some layers have one."""
    if config.get("use_sliding_window") is False:
        return None
    return config.get("sliding_window") or config.get("local_attention")
