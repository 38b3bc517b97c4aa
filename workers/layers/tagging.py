"""Token classifiers of transformers: a head reads every token's state, of all texts at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from protocol.spec import ModelSpec
from workers.layers import heads, transformer
from workers.layers.checkpoint import Checkpoint
from workers.layers.forwards import Forward
from workers.layers.heads import Head, Way


class Tagger:
    def __init__(self, way: Way) -> None:
        self.way = way

    def tag(self, texts: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The likeliest label of each token and its share, special tokens included."""
        with torch.inference_mode():
            best = [row.float().softmax(-1).max(-1) for row in self.way.run(texts)]
            return [(one.indices.to(torch.int16).cpu().numpy(), one.values.cpu().numpy()) for one in best]

    def facts(self) -> Mapping[str, Any]:
        return {**self.way.facts(), "labels": sorted(set(self.way.model.config.id2label.values()))}


class _Every:
    """The encoder one way or the other, then the head on all tokens."""

    def __init__(self, head: Head, forward: Forward) -> None:
        self._head, self._forward = head, forward

    def __call__(self, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> heads.Rows:
        states = self._forward.run(texts, types)
        rows = torch.split(self._head.logits(states.tokens[None])[0], states.lengths.tolist())
        return [rows[place] for place in np.argsort(states.order)]


def load(spec: ModelSpec, about: Checkpoint, device: str, report: Callable[[float], None]) -> Tagger:
    """Raises probe.Unequal when no way gives what each text alone gives."""
    steps = iter((0.4, 0.7))

    def read() -> Any:
        return transformer.read(spec, about.folder, device, auto="AutoModelForTokenClassification", unused=())

    way = heads.settle(read, about, False, lambda: report(next(steps, 0.7)), lambda whole: whole.rows, [_Every])
    return Tagger(way)
