"""Sequence classifiers of transformers run without padding: the encoder packed, its head on one state per text.

A head reads one state of each text, the first token's or the mean of all. It is given just that, in place of the
encoder's whole output, so no head is written again here. Whether a model's head is of that kind is not looked up:
the logits are compared with those of each text alone, and where they differ the whole model runs padded.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from protocol.spec import ModelSpec
from workers.layers import pooling, probe, transformer
from workers.layers.checkpoint import Checkpoint
from workers.layers.forwards import Forward, Whole, alone
from workers.layers.probe import Texts, Unequal
from workers.layers.transformer import bytes_of, dtype_of

log = logging.getLogger("shoal.classifying")

_STATES = ("cls", "mean")  # what heads read, of pooling's modes
_TOLERANCE = {torch.float32: 5e-4}  # of the largest logit
_HALF_TOLERANCE = 5e-2


class Run(Protocol):
    """Logits of each text, in order, as float32."""

    def __call__(self, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Classifier:
    """The way that was found equal; `why` says why not the faster ones."""

    run: Run
    packed: bool
    reordered: bool
    why: str | None
    model: Any
    bytes: int

    def logits(self, batch: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """One row per input, whose `ids` and perhaps `types` a preparer made."""
        types = [inputs["types"] for inputs in batch] if "types" in batch[0] else None
        with torch.inference_mode():
            rows: np.ndarray = self.run([inputs["ids"] for inputs in batch], types).cpu().numpy()
        return rows

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self.model).__name__,
            "labels": len(self.model.config.id2label),
            "dtype": dtype_of(self.model),
            "packed": self.packed,
            "padded_because": self.why,
            "reordered_linear": self.reordered,
        }


class _Given(torch.nn.Module):
    """Stands in the encoder's place before a head, and answers what was gathered."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.pooler = getattr(body, "pooler", None)
        self.states: torch.Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPooling:
        states: Any = self.states
        pooled = self.pooler(states) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooled)


class _Headed:
    """The encoder one way or the other, then the head on what it reads of each text."""

    def __init__(self, model: Any, body: Any, forward: Forward, state: str) -> None:
        self._model, self._forward, self._state = model, forward, state
        self._given = _Given(body)
        setattr(model, model.base_model_prefix, self._given)

    def __call__(self, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None) -> torch.Tensor:
        states = self._forward.run(texts, types)
        gathered = pooling.pool([self._state], states.tokens, states.lengths)[:, None]
        self._given.states = gathered.to(self._model.dtype)
        try:
            rows = self._model(input_ids=torch.zeros(len(texts), 1, dtype=torch.long, device=gathered.device)).logits
        finally:
            self._given.states = None
        ordered: torch.Tensor = torch.empty_like(rows, dtype=torch.float32)
        ordered[torch.from_numpy(states.order)] = rows.float()
        return ordered


def load(
    spec: ModelSpec, about: Checkpoint, device: str, with_types: bool, report: Callable[[float], None]
) -> Classifier:
    """Of a folder whose weights are all there, the head's too."""
    steps = iter((0.5, 0.8))
    report(0.1)
    found = settle(
        lambda: transformer.read(spec, about.folder, device, auto="AutoModelForSequenceClassification", unused=()),
        about,
        with_types,
        lambda: report(next(steps, 0.8)),
    )
    report(1.0)
    return found


def settle(read: Callable[[], Any], about: Checkpoint, with_types: bool, progress: Callable[[], None]) -> Classifier:
    """The fastest way that gives what each text alone gives. `read` gives the model with eager attention.

    Raises probe.Unequal when there is none.
    """
    model = read()
    texts = _end(Texts.drawn(_text_config(about), about.max_tokens, with_types), about.config)
    with torch.inference_mode():
        wanted = torch.cat([out.logits for out in alone(model, texts.ids, texts.types)]).float()
        if not torch.isfinite(wanted).all():
            raise Unequal("the model's logits are not finite")
        reasons: list[str] = []
        for way in _ways(model, read, about, with_types, progress, reasons):
            try:
                error = _error(way.run(texts.ids, texts.types), wanted)
            except Exception as failure:  # the model's own code, called in a way it may not know
                log.info("way refused", extra={"reason": f"{type(failure).__name__}: {failure}"})
                reasons.append(f"{type(failure).__name__}: {failure}"[:200])
                continue
            if error <= _TOLERANCE.get(model.dtype, _HALF_TOLERANCE):
                return way
            reasons.append(f"differs from one by one by {error:.1e}")
    raise Unequal("; ".join(reasons))


def _ways(
    model: Any,
    read: Callable[[], Any],
    about: Checkpoint,
    with_types: bool,
    progress: Callable[[], None],
    reasons: list[str],
) -> Iterator[Classifier]:
    """Each in turn, made when the one before was refused."""
    fresh = iter([model])
    held: list[Any] = []

    def read_body() -> Any:
        held[:] = [next(fresh, None) or read()]
        return held[0].base_model

    try:
        if about.config.get("is_encoder_decoder"):
            raise Unequal("it has a decoder")
        settled = probe.settle(
            read_body, _text_config(about), about.max_tokens, about.position_offset, progress, with_types
        )
        size = bytes_of(held[0])
        for state in _STATES:
            run = _Headed(held[0], settled.model, settled.forward, state)
            yield Classifier(run, settled.forward.packed, settled.reordered, settled.why, held[0], size)
    except Unequal as refusal:
        reasons.append(str(refusal))
    whole = next(fresh, None) or read()
    yield Classifier(
        Whole(whole).logits, False, False, f"the whole model is run: {'; '.join(reasons)}", whole, bytes_of(whole)
    )


def _text_config(about: Checkpoint) -> Mapping[str, Any]:
    found: Mapping[str, Any] = about.config.get("text_config", about.config)
    return found


def _end(texts: Texts, config: Mapping[str, Any]) -> Texts:
    """The same texts with the end token where some heads look for it: last, and nowhere else."""
    end = config.get("eos_token_id")
    if not isinstance(end, int):
        return texts
    other = next(token for token in range(3, 9) if token not in (end, config.get("pad_token_id")))
    for ids in texts.ids:
        ids[ids == end] = other
        ids[-1] = end
    return texts


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, as a share of the largest logit."""
    if found.shape != wanted.shape:
        return float("inf")
    worst = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
    return worst if np.isfinite(worst) else float("inf")
