"""Models of transformers with a head of their own: the encoder packed or padded, its head on the states that came out.

The head is never written again here: the checkpoint's model runs with the states in its encoder's place. Whether that
gives what each text alone gives is not looked up but compared at load; where it does not, the whole model runs padded.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from workers.layers import probe
from workers.layers.checkpoint import Checkpoint
from workers.layers.forwards import Forward, Whole, alone
from workers.layers.probe import Texts, Unequal
from workers.layers.transformer import bytes_of, dtype_of

log = logging.getLogger("shoal.heads")

_TOLERANCE = {torch.float32: 5e-4}  # of the largest logit
_HALF_TOLERANCE = 5e-2

Rows = Sequence[torch.Tensor]  # of each text, in order: (labels) or (tokens, labels)


class Run(Protocol):
    def __call__(self, texts: Sequence[np.ndarray], types: Sequence[np.ndarray] | None = None) -> Rows: ...


@dataclass(frozen=True, slots=True)
class Way:
    """The way of running a model that was found equal; `why` says why not a faster one."""

    run: Run
    packed: bool
    reordered: bool
    why: str | None
    model: Any
    modules: tuple[Any, ...]  # that hold its weights

    @property
    def bytes(self) -> int:
        return bytes_of(*self.modules)

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self.model).__name__,
            "dtype": dtype_of(self.model),
            "packed": self.packed,
            "padded_because": self.why,
            "reordered_linear": self.reordered,
        }


class Head:
    """Takes the encoder out of `whole`, which then answers for the states it is given."""

    def __init__(self, whole: Any) -> None:
        self.encoder = whole.base_model
        self.model = whole
        setattr(whole, whole.base_model_prefix, _Given(self.encoder))

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Of states (texts, tokens, width)."""
        found: torch.Tensor = self.model(inputs_embeds=states.to(self.model.dtype)).logits
        return found


class _Given(torch.nn.Module):
    """Stands where the encoder was; what it is to read are the states to answer with."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.pooler = getattr(encoder, "pooler", None)

    def forward(self, *args: Any, inputs_embeds: Any, **kwargs: Any) -> BaseModelOutputWithPooling:
        pooled = self.pooler(inputs_embeds) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooled)


def settle(
    read: Callable[[], Any],
    about: Checkpoint,
    with_types: bool,
    progress: Callable[[], None],
    whole: Callable[[Whole], Run],
    headed: Sequence[Callable[[Head, Forward], Run]],
) -> Way:
    """The first way that gives what each text alone gives: one of `headed`, else the whole model.

    `read` gives the model with eager attention; it is called again where a way that failed spoiled it. Raises
    probe.Unequal when no way is equal.
    """
    model = read()
    texts = _end(Texts.drawn(_text_config(about), about.max_tokens, with_types), about.config)
    with torch.inference_mode():
        wanted = _flat([out.logits[0] for out in alone(model, texts.ids, texts.types)])
        if not torch.isfinite(wanted).all():
            raise Unequal("the model's logits are not finite")
        reasons: list[str] = []
        for way in _ways(model, read, about, with_types, progress, whole, headed, reasons):
            try:
                error = _error(_flat(way.run(texts.ids, texts.types)), wanted)
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
    whole: Callable[[Whole], Run],
    headed: Sequence[Callable[[Head, Forward], Run]],
    reasons: list[str],
) -> Iterator[Way]:
    """Each in turn, made when the one before was refused."""
    fresh = iter([model])
    heads: list[Head] = []

    def read_encoder() -> Any:
        heads[:] = [Head(next(fresh, None) or read())]
        return heads[0].encoder

    try:
        if about.config.get("is_encoder_decoder"):
            raise Unequal("it has a decoder")
        settled = probe.settle(
            read_encoder, _text_config(about), about.max_tokens, about.position_offset, progress, with_types
        )
        modules = settled.model, heads[0].model
        for make in headed:
            run = make(heads[0], settled.forward)
            yield Way(run, settled.forward.packed, settled.reordered, settled.why, heads[0].model, modules)
    except Unequal as refusal:
        reasons.append(str(refusal))
    last = next(fresh, None) or read()
    yield Way(whole(Whole(last)), False, False, f"the whole model is run: {'; '.join(reasons)}", last, (last,))


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


def _flat(rows: Rows) -> torch.Tensor:
    return torch.cat([row.reshape(-1, row.shape[-1]) for row in rows]).float()


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, as a share of the largest logit."""
    if found.shape != wanted.shape:
        return float("inf")
    worst = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
    return worst if np.isfinite(worst) else float("inf")
