"""Writes the folder that transformers and sentence-transformers read, for weights that came in another form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """What such a folder says beside its weights and tokenizer."""

    config: Mapping[str, Any]  # config.json
    max_tokens: int
    special_tokens: Mapping[str, str]  # pad_token, unk_token, cls_token, …
    normalize: bool
    prompts: Mapping[str, str] = field(default_factory=dict)


def write(folder: Path, encoder: TextEncoder, weights: Mapping[str, np.ndarray], tokenizer: Tokenizer) -> None:
    """Mean pooling: all that has been converted so far uses it."""
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    modules = ["Transformer", "Pooling", "Normalize"] if encoder.normalize else ["Transformer", "Pooling"]
    paths = ["", "1_Pooling", "2_Normalize"]
    documents: dict[str, Any] = {
        "config.json": dict(encoder.config),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": encoder.max_tokens,
            **encoder.special_tokens,
        },
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{module}"}
            for index, (path, module) in enumerate(zip(paths, modules, strict=False))
        ],
        "sentence_bert_config.json": {"max_seq_length": encoder.max_tokens, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": dict(encoder.prompts), "default_prompt_name": None},
        "1_Pooling/config.json": {
            "word_embedding_dimension": encoder.config["hidden_size"],
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": False,
        },
    }
    for name, document in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")


def bert_config(
    *, hidden: int, layers: int, heads: int, intermediate: int, vocabulary: int, **others: Any
) -> dict[str, Any]:
    """config.json of a BertModel."""
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "hidden_act": "gelu",
        "dtype": "float32",
        **others,
    }
