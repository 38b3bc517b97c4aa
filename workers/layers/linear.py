"""A faster linear layer on CPUs: oneDNN with weights reordered once, the exact GELU behind it computed along.

torch's own layer calls a general matrix product; where that one is tuned for another maker's processors, the reordered
one is twice as fast at the same precision. Whether it is on this machine is measured, not guessed.
"""

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_TOKENS = 256
_ROUNDS = 5
_WORTH = 0.95  # of the plain layer's time


class ReorderedLinear(nn.Module):
    """Computes what the nn.Linear it was made from computes, and its activation."""

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        # Models look at a weight's dtype and device, so it keeps its name; it is no parameter any more.
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, self._activation, [], "none" if self._activation == "gelu" else ""
        )
        return out

    @property
    def bytes(self) -> int:
        numbers: int = self.in_features * self.out_features + (0 if self.bias is None else self.out_features)
        return numbers * 4


def is_worth_it(model: nn.Module) -> bool:
    """Whether reordering makes this model's largest kind of layer faster here."""
    layers: list[Any] = [layer for layer in model.modules() if _is_plain(layer)]
    onednn: Any = torch.backends.mkldnn
    if not layers or not onednn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    largest = max(layers, key=lambda layer: layer.weight.numel())
    x = torch.randn(_TOKENS, largest.in_features)
    return _seconds(ReorderedLinear(largest), x) < _WORTH * _seconds(largest, x)


def reorder(model: nn.Module) -> int:
    """Replace every plain float32 linear layer below `model`; answers how many."""
    count = 0
    children: list[tuple[str, Any]] = list(model.named_children())
    for name, child in children:
        if _is_plain(child):
            setattr(model, name, ReorderedLinear(child, _take_activation(model, name)))
            count += 1
        else:
            count += reorder(child)
    return count


def _is_plain(module: Any) -> bool:
    """Exactly nn.Linear: subclasses compute something else."""
    if type(module) is not nn.Linear:
        return False
    return bool(module.weight.dtype == torch.float32 and module.weight.device.type == "cpu")


def _take_activation(parent: nn.Module, name: str) -> str:
    """BERT and its kin compute `intermediate_act_fn(dense(x))` in a module that does nothing else."""
    activation = getattr(parent, "intermediate_act_fn", None)
    if name != "dense" or len(list(parent.children())) != 2 or getattr(activation, "act", None) is not functional.gelu:
        return "none"
    parent.intermediate_act_fn = nn.Identity()
    return "gelu"


def _seconds(layer: nn.Module, x: torch.Tensor) -> float:
    """Of the fastest of a few runs."""
    times = []
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            layer(x)
            times.append(time.perf_counter() - started)
    return min(times)
