"""Sequence classifiers of transformers: a head reads one state of each text, its first token's or the mean of all."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from protocol.spec import ModelSpec
from workers.layers import heads, pooling, transformer
from workers.layers.checkpoint import Checkpoint
from workers.layers.forwards import Forward, Whole
from workers.layers.heads import Head, Way

_STATES = ("cls", "mean")  # what heads read, of pooling's modes


class Classifier:
    def __init__(self, way: Way) -> None:
        self.way = way

    def logits(self, batch: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """One row per input, whose `ids` and perhaps `types` a preparer made; float32."""
        types = [inputs["types"] for inputs in batch] if "types" in batch[0] else None
        with torch.inference_mode():
            rows = self.way.run([inputs["ids"] for inputs in batch], types)
            logits: np.ndarray = torch.stack(list(rows)).float().cpu().numpy()
        return logits

    def facts(self) -> Mapping[str, Any]:
        return {**self.way.facts(), "labels": len(self.way.model.config.id2label)}


class _Pooled:
    """The encoder one way or the other, then the head on what it reads of each text."""

    def __init__(self, state: str, head: Head, forward: Forward) -> None:
        self._state, self._head, self._forward = state, head, forward

    def __call__(self, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> heads.Rows:
        states = self._forward.run(texts, types)
        rows = self._head.logits(pooling.pool([self._state], states.tokens, states.lengths)[:, None])
        return [rows[place] for place in np.argsort(states.order)]


def load(
    spec: ModelSpec, about: Checkpoint, device: str, with_types: bool, report: Callable[[float], None]
) -> Classifier:
    """Of a folder whose weights are all there, the head's too. Raises probe.Unequal when it cannot be batched."""
    steps = iter((0.5, 0.8))
    report(0.1)
    way = settle(
        lambda: transformer.read(spec, about.folder, device, auto="AutoModelForSequenceClassification", unused=()),
        about,
        with_types,
        lambda: report(next(steps, 0.8)),
    )
    report(1.0)
    return Classifier(way)


def settle(read: Callable[[], Any], about: Checkpoint, with_types: bool, progress: Callable[[], None]) -> Way:
    """The fastest way that gives what each text alone gives. `read` gives the model with eager attention."""
    headed = [partial(_Pooled, state) for state in _STATES]
    return heads.settle(read, about, with_types, progress, lambda whole: partial(_rows, whole), headed)


def _rows(whole: Whole, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> heads.Rows:
    return list(whole.logits(texts, types))
