"""A tiny encoder whose code stands in its own folder, as checkpoints have it that transformers itself does not know."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.models import tiny

WIDTH, HEADS, LAYERS = 32, 4, 2
COMMIT = "0123456789abcdef0123456789abcdef01234567"

CONFIGURATION = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own_code"

    def __init__(self, vocab_size=320, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **others):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        super().__init__(**others)
"""

# transformers 4 has both, and 5 has neither; many published models were written with them.
FOUR = {
    "IMPORTS": "from transformers.pytorch_utils import find_pruneable_heads_and_indices, prune_linear_layer",
    "HEAD_MASK": "self.get_head_mask(None, self.config.num_hidden_layers)",
}
ANY = {"IMPORTS": "", "HEAD_MASK": "[None] * self.config.num_hidden_layers"}

MODELING = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
IMPORTS

from .configuration_own import OwnConfig


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.mixed = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, states, bias, head_mask):
        query, key, value = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in self.mixed(states).chunk(3, -1))
        weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + bias).softmax(-1)
        if head_mask is not None:
            weights = weights * head_mask
        return states + self.out((weights @ value).transpose(1, 2).flatten(-2))


class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **others):
        states = self.words(input_ids)
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        bias = (1.0 - seen[:, None, None, :].to(states.dtype)) * torch.finfo(states.dtype).min
        for layer, mask in zip(self.layers, HEAD_MASK):
            states = layer(states, bias, mask)
        return BaseModelOutput(last_hidden_state=states)
"""


def checkpoint(folder: Path, *, needs_four: bool, first: str = "") -> Path:
    """A whole folder, its vectors the mean of all tokens; `first` is run when its model's code is imported."""
    folder.mkdir(parents=True, exist_ok=True)
    modeling = MODELING
    for name, text in (FOUR if needs_four else ANY).items():
        modeling = modeling.replace(name, text)
    (folder / "modeling_own.py").write_text(f"{first}\n{modeling}")
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    config = {
        "model_type": "own_code",
        "architectures": ["OwnModel"],
        "auto_map": {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"},
        "vocab_size": tiny.VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(), folder / "model.safetensors", {"format": "pt"})
    tiny.tokenizer("bert", folder)
    return folder


def _weights() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"words.weight": (tiny.VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {
            f"layers.{layer}.mixed.weight": (3 * WIDTH, WIDTH),
            f"layers.{layer}.mixed.bias": (3 * WIDTH,),
            f"layers.{layer}.out.weight": (WIDTH, WIDTH),
            f"layers.{layer}.out.bias": (WIDTH,),
        }
    return {name: (chance.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
