"""Linear layers that stand behind every token of a late-interaction encoder; computed in float32."""

from collections.abc import Sequence

import torch
from torch import nn

from protocol.spec import ModelSpec
from workers.layers.multivector import Projection
from workers.weights import files
from workers.weights.failures import CORRUPT, load_failed

_NAMES = ("linear.weight", "linear.bias", "residual.weight")


class _Projected(nn.Module):
    """activation(linear(x)), plus x or a linear map of it where the checkpoint has a residual."""

    def __init__(self, weights: dict[str, torch.Tensor], about: Projection) -> None:
        super().__init__()
        self.linear = _linear(weights["linear.weight"], weights.get("linear.bias"))
        self.residual: nn.Module | None = None
        if about.has_residual:
            own = weights.get("residual.weight")
            self.residual = nn.Identity() if own is None else _linear(own, None)
        self.activation = getattr(nn, about.activation)()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.activation(self.linear(tokens))
        return made if self.residual is None else made + self.residual(tokens)


def read_projections(spec: ModelSpec, projections: Sequence[Projection]) -> nn.Module:
    """All of them, one behind the other. Raises ModelLoadFailed for a folder without the weights of one."""
    return nn.Sequential(*(_Projected(_weights(spec, each), each) for each in projections)).eval()


def _weights(spec: ModelSpec, about: Projection) -> dict[str, torch.Tensor]:
    from safetensors import safe_open

    found: dict[str, torch.Tensor] = {}
    for shard in files.shards(about.folder):
        with safe_open(shard, framework="pt") as opened:
            there = set(opened.keys())
            found |= {name: opened.get_tensor(name).float() for name in _NAMES if name in there}
    if "linear.weight" not in found:
        raise load_failed(spec.model, CORRUPT, f"its folder {about.folder.name} holds no linear.weight")
    return found


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    rows, columns = weight.shape
    layer = nn.Linear(columns, rows, bias=bias is not None)
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer
