"""The masked-language head of a model, apart from its encoder, so that the encoder can run without padding."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

# The head makes a number per token and word: of so many tokens at once, whatever the batch holds
CHUNK_TOKENS = 512


class _Given(nn.Module):
    """Stands where the encoder was and answers with the states it is given."""

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)  # type: ignore[arg-type]  # any dtype will do


class MaskedHead:
    """Takes the encoder out of `whole`; a SPLADE vector of each text is the pooled answer of what is left."""

    def __init__(self, whole: Any, pooling: str, twice: bool) -> None:
        self.encoder = getattr(whole, whole.base_model_prefix)
        setattr(whole, whole.base_model_prefix, _Given())
        self.model = whole
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
        logits = self.model(inputs_embeds=tokens[None]).logits[0].float()
        values = logits if self._pooling == "max" else self._saturate(logits)
        bounds = torch.tensor(lengths, device=values.device)
        return torch.segment_reduce(values, self._pooling, lengths=bounds, axis=0)

    def _finish(self, row: torch.Tensor) -> torch.Tensor:
        return self._saturate(row) if self._pooling == "max" else row

    def _saturate(self, values: torch.Tensor) -> torch.Tensor:
        values = values.relu().log1p()
        return values.log1p() if self._twice else values
