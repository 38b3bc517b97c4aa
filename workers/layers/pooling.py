"""From token states to one vector per text, for texts laid end to end; no loop over texts or tokens."""

from collections.abc import Sequence

import numpy as np
import torch


class Bounds:
    """Where each text's tokens are, without the first `skipped` of each (a prompt that is not to be pooled)."""

    def __init__(self, tokens: torch.Tensor, lengths: np.ndarray, skipped: np.ndarray) -> None:
        ends = np.cumsum(lengths)
        self.device = tokens.device
        self.first = self._tensor(np.minimum(ends - lengths + skipped, ends - 1))
        self.last = self._tensor(ends - 1)
        self.places = np.arange(len(tokens)) - np.repeat(ends - lengths, lengths)
        self.tokens = tokens
        if skipped.any():
            kept = self.places >= np.repeat(skipped, lengths)
            self.places = self.places[kept]
            self.tokens = tokens[self._tensor(kept)]
            lengths = np.maximum(lengths - skipped, 0)
        self.lengths = self._tensor(lengths)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over each text's tokens; zero for a text of none."""
        return torch.segment_reduce(values.float(), "sum", lengths=self.lengths, axis=0)


def pool(
    modes: Sequence[str], tokens: torch.Tensor, lengths: np.ndarray, skipped: np.ndarray | None = None
) -> torch.Tensor:
    """One float32 row per text; several modes are set side by side."""
    bounds = Bounds(tokens, lengths, np.zeros_like(lengths) if skipped is None else skipped)
    rows = [_pool(mode, bounds, tokens).float() for mode in modes]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def _pool(mode: str, bounds: Bounds, tokens: torch.Tensor) -> torch.Tensor:
    match mode:
        case "cls":
            return tokens[bounds.first]
        case "lasttoken":
            return tokens[bounds.last]
        case "max":
            return torch.segment_reduce(bounds.tokens.float(), "max", lengths=bounds.lengths, axis=0)
        case "mean":
            return bounds.total(bounds.tokens) / _at_least_one(bounds.lengths)
        case "mean_sqrt_len_tokens":
            return bounds.total(bounds.tokens) / _at_least_one(bounds.lengths).sqrt()
        case "weightedmean":
            weights = torch.from_numpy(bounds.places + 1.0).float().to(tokens.device)[:, None]
            return bounds.total(bounds.tokens * weights) / bounds.total(weights).clamp(min=1e-9)
    raise ValueError(f"unknown pooling {mode!r}")


def _at_least_one(lengths: torch.Tensor) -> torch.Tensor:
    return lengths[:, None].clamp(min=1).float()
