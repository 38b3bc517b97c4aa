"""SPLADE vectors from the masked-language head of a model (arXiv:2107.05720), whose encoder ran without padding."""

from collections.abc import Iterator

import numpy as np
import torch

from workers.layers.heads import Head

# The head makes a number per token and word: of so many tokens at once, whatever the batch holds
CHUNK_TOKENS = 512


class MaskedHead:
    """A SPLADE vector of each text is the pooled answer of its head."""

    def __init__(self, head: Head, pooling: str, twice: bool) -> None:
        self._head = head
        self._pooling = pooling
        self._twice = twice

    def pool(self, tokens: torch.Tensor, lengths: np.ndarray) -> Iterator[torch.Tensor]:
        """One row of words per text, float32; `tokens` lie end to end, of each text `lengths`."""
        texts = torch.split(tokens, lengths.tolist())
        group: list[torch.Tensor] = []
        for text in texts:
            if group and sum(map(len, group)) + len(text) > CHUNK_TOKENS:
                yield from self._rows(group)
                group = []
            group.append(text)
        if group:
            yield from self._rows(group)

    def _rows(self, texts: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        if len(texts) == 1:
            parts = [self._reduce(chunk, [len(chunk)]) for chunk in torch.split(texts[0], CHUNK_TOKENS)]
            stacked = torch.cat(parts)
            yield self._finish(stacked.amax(0) if self._pooling == "max" else stacked.sum(0))
            return
        for row in self._reduce(torch.cat(texts), [len(text) for text in texts]):
            yield self._finish(row)

    def _reduce(self, tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """One row per text. What grows with its argument may come after the maximum; a sum needs it before."""
        logits = self._head.logits(tokens[None])[0].float()
        values = logits if self._pooling == "max" else self._saturate(logits)
        bounds = torch.tensor(lengths, device=values.device)
        return torch.segment_reduce(values, self._pooling, lengths=bounds, axis=0)

    def _finish(self, row: torch.Tensor) -> torch.Tensor:
        return self._saturate(row) if self._pooling == "max" else row

    def _saturate(self, values: torch.Tensor) -> torch.Tensor:
        values = values.relu().log1p()
        return values.log1p() if self._twice else values
