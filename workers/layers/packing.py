"""Attention over sequences laid end to end, so that no forward computes padding.

transformers lets a model's attention be replaced by a function. Ours never mixes sequences: on a CPU each run of equal
lengths is one batched call, on a GPU one call with sequence bounds does all. Where the sequences lie is told through a
context variable, since some models drop keyword arguments they do not know. Not every model asks this function, or asks
it for all that its attention does: `workers.layers.probe` decides, never the name of an architecture.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

PACKED = "shoal_packed"


class CannotPack(RuntimeError):
    """The model wants something of its attention that the packed one does not do."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbours of equal length in a pack; the first begins at token `start`."""

    start: int
    count: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Where sequences lie in one forward. `order[i]` is the caller's index of the i-th: they are sorted by length."""

    order: np.ndarray
    lengths: np.ndarray
    runs: tuple[Run, ...]
    masks: dict[tuple[int, int, bool], torch.Tensor] = field(default_factory=dict)

    @property
    def starts(self) -> np.ndarray:
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    def bounds(self, device: torch.device) -> torch.Tensor:
        """Where each sequence begins and the last ends, for kernels of variable length."""
        return torch.tensor([0, *np.cumsum(self.lengths)], dtype=torch.int32, device=device)


_current: ContextVar[Pack | None] = ContextVar("pack", default=None)


def lay_out(lengths: Sequence[int]) -> Pack:
    """Sort by length, so that equal lengths are neighbours."""
    given = np.asarray(lengths)
    order = np.argsort(given, kind="stable")
    ordered = given[order]
    runs, start = [], 0
    for length, count in zip(*np.unique(ordered, return_counts=True), strict=True):
        runs.append(Run(start, int(count), int(length)))
        start += int(count * length)
    return Pack(order, ordered, tuple(runs))


@contextmanager
def packed(pack: Pack) -> Iterator[None]:
    """Attention inside this block keeps to the pack's sequences."""
    token = _current.set(pack)
    try:
        yield
    finally:
        _current.reset(token)


def positions(ids: np.ndarray, pack: Pack, offset: int, pad: int) -> np.ndarray:
    """The position of each token in its own text, from `offset` on.

    Models with an offset give a padding token, should a text hold one, the position `pad` and do not count it.
    """
    first = np.repeat(pack.starts, pack.lengths)
    places: np.ndarray = np.arange(len(ids)) - first + offset
    if offset and (ids == pad).any():
        counted = np.cumsum(ids != pad)
        before = (counted - (ids != pad))[first]
        places = np.where(ids == pad, pad, counted - before - 1 + offset)
    return places


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls; tensors are (1, heads, tokens, width)."""
    pack = _current.get()
    if pack is None:
        raise CannotPack("no pack is being computed")
    if attention_mask is not None:
        raise CannotPack("the model masks its attention in a way of its own")
    for name in ("softcap", "position_bias", "s_aux"):
        if asked.get(name) is not None:
            raise CannotPack(f"the model's attention uses {name}")
    causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
    function = _attend_varlen if query.is_cuda else _attend_runs
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return function(q, k, v, pack, scaling, causal, sliding_window)[None], None


def _attend_runs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pack: Pack,
    scaling: float | None,
    causal: bool,
    window: int | None,
) -> torch.Tensor:
    """One call per run of equal lengths. Tensors are (tokens, heads, width)."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    outs = []
    for run in pack.runs:
        end = run.start + run.count * run.length
        shape = (run.count, run.length)
        q, k, v = (x[run.start : end].view(*shape, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
        mask = _window_mask(pack, run.length, window, causal) if window and run.length > window else None
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scaling, is_causal=causal and mask is None
        )
        outs.append(out.transpose(1, 2).flatten(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _window_mask(pack: Pack, length: int, window: int, causal: bool) -> torch.Tensor:
    """Who may look at whom: fewer than `window` tokens apart. Made once per forward, for all layers."""
    wanted = (length, window, causal)
    if wanted not in pack.masks:
        at = torch.arange(length)
        apart = at[:, None] - at[None, :]
        pack.masks[wanted] = (apart >= 0) & (apart < window) if causal else apart.abs() < window
    return pack.masks[wanted]


def _attend_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pack: Pack,
    scaling: float | None,
    causal: bool,
    window: int | None,
) -> torch.Tensor:
    """One call for the whole pack. Written against torch.nn.attention.varlen; not yet run on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    bounds = pack.bounds(query.device)
    longest = int(pack.lengths[-1])
    reach = window - 1 if window else -1
    out: Any = varlen_attn(
        query,
        key,
        value,
        bounds,
        bounds,
        longest,
        longest,
        scale=scaling,
        window_size=(reach, 0 if causal else reach),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return cast(torch.Tensor, out)


AttentionInterface.register(PACKED, attend)
# No mask at all: the attention function knows the bounds.
AttentionMaskInterface.register(PACKED, lambda *args, **kwargs: None)
