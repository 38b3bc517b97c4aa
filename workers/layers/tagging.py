"""Token classifiers of transformers: the encoder packed or padded, its head on all tokens of all texts at once.

The head is the checkpoint's own: the model runs with the states in its encoder's place. That this gives what each text
gives alone is not assumed but compared at load; where it does not, the whole model runs padded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput

from protocol.spec import ModelSpec
from workers.layers import probe, transformer
from workers.layers.checkpoint import Checkpoint
from workers.layers.forwards import Forward, Whole, alone
from workers.layers.probe import Texts, Unequal

_TOLERANCE = {torch.float32: 5e-4}  # of the largest logit
_HALF_TOLERANCE = 5e-2

Rows = list[torch.Tensor]  # (tokens, labels), one per text, in order


class Run(Protocol):
    def __call__(self, texts: Sequence[np.ndarray]) -> Rows: ...


@dataclass(frozen=True, slots=True)
class Tagger:
    """The way that was found equal; `why` says why not the faster one."""

    run: Run
    packed: bool
    why: str | None
    model: Any
    bytes: int

    def tag(self, texts: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The likeliest label of each token and its share, special tokens included."""
        with torch.inference_mode():
            best = [row.float().softmax(-1).max(-1) for row in self.run(texts)]
            return [(one.indices.to(torch.int16).cpu().numpy(), one.values.cpu().numpy()) for one in best]


class _Given(torch.nn.Module):
    """Stands in the encoder's place before a head."""

    states: torch.Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.states)  # type: ignore[arg-type]  # set by every run


class _Headed:
    def __init__(self, model: Any, forward: Forward) -> None:
        self._model, self._forward, self._given = model, forward, _Given()
        setattr(model, model.base_model_prefix, self._given)

    def __call__(self, texts: Sequence[np.ndarray]) -> Rows:
        states = self._forward.run(texts)
        self._given.states = states.tokens[None]
        ids = torch.zeros(1, len(states.tokens), dtype=torch.long, device=states.tokens.device)
        try:
            logits = self._model(input_ids=ids).logits[0]
        finally:
            self._given.states = None
        rows = logits.split(states.lengths.tolist())
        return [rows[place] for place in np.argsort(states.order)]


def load(spec: ModelSpec, about: Checkpoint, device: str, report: Callable[[float], None]) -> Tagger:
    """Raises probe.Unequal when no way gives what each text alone gives."""
    held: list[Any] = []

    def read() -> Any:
        held[:] = [transformer.read(spec, about.folder, device, auto="AutoModelForTokenClassification", unused=())]
        return held[0].base_model

    texts = Texts.drawn(about.config, about.max_tokens, False).ids
    read()
    wanted = _alone(held[0], texts)
    report(0.4)
    try:
        settled = probe.settle(read, about.config, about.max_tokens, about.position_offset, lambda: report(0.7))
        size = transformer.bytes_of(held[0])
        tagger = Tagger(_Headed(held[0], settled.forward), settled.forward.packed, settled.why, held[0], size)
        _compare(tagger, texts, wanted)
        return tagger
    except Unequal as refusal:
        why = f"the whole model is run: {refusal}"
    read()
    tagger = Tagger(Whole(held[0]).rows, False, why, held[0], transformer.bytes_of(held[0]))
    _compare(tagger, texts, wanted)
    return tagger


def _alone(model: Any, texts: Sequence[np.ndarray]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.cat([out.logits[0] for out in alone(model, texts)]).float()


def _compare(tagger: Tagger, texts: Sequence[np.ndarray], wanted: torch.Tensor) -> None:
    with torch.inference_mode():
        found = torch.cat(tagger.run(texts)).float()
    error = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
    if not error <= _TOLERANCE.get(tagger.model.dtype, _HALF_TOLERANCE):  # an error that is no number is none
        raise Unequal(f"differs from one by one by {error:.1e}")


def facts(tagger: Tagger) -> Mapping[str, Any]:
    return {
        "architecture": type(tagger.model).__name__,
        "labels": sorted(set(tagger.model.config.id2label.values())),
        "dtype": transformer.dtype_of(tagger.model),
        "packed": tagger.packed,
        "padded_because": tagger.why,
    }
