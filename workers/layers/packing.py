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
    """Neighbours of equal length in a pack; the first begins at token `start`, `seen` of each are looked at."""

    start: int
    count: int
    length: int
    seen: int


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Where sequences lie in one forward. `order[i]` is the caller's index of the i-th: they are sorted by length.

    All tokens of a sequence look at its first `seen` ones; mostly that is all of them.
    """

    order: np.ndarray
    lengths: np.ndarray
    seen: np.ndarray
    runs: tuple[Run, ...]
    masks: dict[tuple[int, int, bool], torch.Tensor] = field(default_factory=dict)

    @property
    def starts(self) -> np.ndarray:
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    def bounds(self, device: torch.device) -> torch.Tensor:
        """Where each sequence begins and the last ends, for kernels of variable length."""
        return torch.tensor([0, *np.cumsum(self.lengths)], dtype=torch.int32, device=device)

    def seen_bounds(self, device: torch.device) -> torch.Tensor:
        """The same of the tokens that are looked at, were they alone."""
        return torch.tensor([0, *np.cumsum(self.seen)], dtype=torch.int32, device=device)

    def seen_tokens(self, device: torch.device) -> torch.Tensor | None:
        """Places of the tokens that are looked at; None if all are."""
        if (self.seen == self.lengths).all():
            return None
        places = np.arange(self.lengths.sum()) - np.repeat(self.starts, self.lengths)
        return torch.from_numpy(np.flatnonzero(places < np.repeat(self.seen, self.lengths))).to(device)


_current: ContextVar[Pack | None] = ContextVar("pack", default=None)


def lay_out(lengths: Sequence[int], seen: Sequence[int] | None = None) -> Pack:
    """Sort by length, so that equal lengths are neighbours. `seen` says of how many tokens each is looked at."""
    given = np.asarray(lengths)
    looked = given if seen is None else np.asarray(seen)
    both = given * (int(given.max()) + 1) + looked
    order = np.argsort(both, kind="stable")
    runs, start = [], 0
    for pair, count in zip(*np.unique(both, return_counts=True), strict=True):
        length, first = divmod(int(pair), int(given.max()) + 1)
        runs.append(Run(start, int(count), length, first))
        start += int(count) * length
    return Pack(order, given[order], looked[order], tuple(runs))


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
        if run.seen < run.length:
            k, v = k[:, :, : run.seen], v[:, :, : run.seen]
        mask = _mask(pack, run, causal, window)
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scaling, is_causal=causal and mask is None
        )
        outs.append(out.transpose(1, 2).flatten(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _mask(pack: Pack, run: Run, causal: bool, window: int | None) -> torch.Tensor | None:
    """Who may look at whom: fewer than `window` tokens apart, and nobody ahead if `causal`. None where torch's own
    attention knows. Made once per forward, for all layers.
    """
    window = window if window and run.length > window else None
    if window is None and not (causal and run.seen < run.length):
        return None
    wanted = (run.length, window or run.length, causal)
    if wanted not in pack.masks:
        at = torch.arange(run.length)
        apart = at[:, None] - at[None, :]
        pack.masks[wanted] = (apart >= 0) & (apart < wanted[1]) if causal else apart.abs() < wanted[1]
    return pack.masks[wanted][:, : run.seen]


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

    looked = pack.seen_tokens(query.device)
    if looked is not None:
        if causal or window:
            raise CannotPack("its kernel counts distances from the end, where some tokens are not looked at")
        key, value = key[looked], value[looked]
    bounds = pack.bounds(query.device)
    longest = int(pack.lengths[-1])
    reach = window - 1 if window else -1
    out: Any = varlen_attn(
        query,
        key,
        value,
        bounds,
        bounds if looked is None else pack.seen_bounds(query.device),
        longest,
        longest if looked is None else int(pack.seen.max()),
        scale=scaling,
        window_size=(reach, 0 if causal else reach),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return cast(torch.Tensor, out)


AttentionInterface.register(PACKED, attend)
# No mask at all: the attention function knows the bounds.
AttentionMaskInterface.register(PACKED, lambda *args, **kwargs: None)
