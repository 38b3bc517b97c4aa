"""Pooling is what the checkpoint's files say, over a text's own tokens, whatever it shares a batch with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.errors import ModelLoadFailed
from tests.models import tiny
from tests.models.conftest import Encoder, cosines, spec
from workers.layers import pooling

WORDS = tiny.words(60)
TEXTS = ["", *(" ".join(WORDS[:count]) for count in (1, 2, 7, 7, 30, 58))]
MODES: dict[str, dict[str, Any]] = {
    "mean": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    "cls": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "max": {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False},
    "mean_sqrt_len": {"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_mean_tokens": False},
    "weightedmean": {"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": False},
    "lasttoken": {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
    "two, as new files say it": {"embedding_dimension": 32, "pooling_mode": ["cls", "mean"]},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "mpnet"])
def test_pooling_equals_sentence_transformers(
    kind: str, mode: str, tmp_path: Path, reference: Callable[[Path], Any]
) -> None:
    encoder = Encoder(spec(), tiny.checkpoint(tmp_path, kind, MODES[mode]))

    wanted = reference(tmp_path).encode(TEXTS, batch_size=1)

    assert np.abs(encoder.vectors(TEXTS) - wanted).max() < 1e-5
    assert np.abs(encoder.vectors(TEXTS[::-1])[::-1] - wanted).max() < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
def test_last_token_vectors_do_not_depend_on_batch_or_padding_side(
    side: str, tmp_path: Path, reference: Callable[[Path], Any]
) -> None:
    """S001: alone, at three places of a mixed batch, among copies of itself."""
    tiny.checkpoint(tmp_path, "qwen3", MODES["lasttoken"], prompts={"query": "Instruct: find\nQuery:"})
    settings = tmp_path / "tokenizer_config.json"
    tiny.write(settings, {**json.loads(settings.read_text()), "padding_side": side})
    encoder = Encoder(spec(), tmp_path)
    text, others = "river stones", ["the lazy dog"] * 20 + ["quick brown fox " * count for count in range(1, 12)]

    alone = encoder.vectors([text])[0]
    found = [encoder.vectors([*others[:place], text, *others[place:]])[place] for place in (0, 15, 31)]
    copies = encoder.vectors([text] * 32)

    wanted = reference(tmp_path).encode([text], batch_size=1)[0]
    assert max(np.abs(vector - alone).max() for vector in [*found, *copies]) < 1e-5
    assert np.abs(alone - wanted).max() < 1e-5


def test_mean_pooling_does_not_count_padding(minilm: Encoder) -> None:
    """S002: also equal to the mean computed from token states by hand."""
    long = " ".join(["quay"] * 500)

    alone, beside = minilm.vectors(["ok"]), minilm.vectors(["ok", long])[:1]

    prepared = minilm.prepare(["ok"])[0]
    with torch.inference_mode():
        states = minilm.model._settled.forward.run([prepared.inputs["ids"]]).tokens
    by_hand = states.mean(0, keepdim=True).numpy()
    assert cosines(alone, beside).min() > 0.9999
    assert cosines(alone, by_hand).min() > 0.9999


def test_a_checkpoint_without_pooling_needs_the_entry_to_say_one(tmp_path: Path) -> None:
    """S009."""
    tiny.checkpoint(tmp_path, "bert", pooling=None)

    with pytest.raises(ModelLoadFailed, match=r"modules\.json names no pooling; say load\.pooling") as caught:
        Encoder(spec(), tmp_path)

    assert caught.value.extra == {"error_class": "UNSUPPORTED", "permanent": True}
    assert Encoder(spec(pooling="cls"), tmp_path).model.facts()["pooling"] == "cls"


def test_what_was_taken_is_among_the_facts(tmp_path: Path) -> None:
    encoder = Encoder(spec(), tiny.checkpoint(tmp_path, "bert", MODES["cls"]))

    facts = encoder.model.facts()

    assert (facts["pooling"], facts["normalize"], facts["max_tokens"], facts["dtype"]) == ("cls", True, 64, "float32")


def test_an_unknown_pooling_is_refused_by_name(tmp_path: Path) -> None:
    tiny.checkpoint(tmp_path, "bert", {"pooling_mode": "attention"})

    with pytest.raises(ModelLoadFailed, match="asks for the pooling 'attention'"):
        Encoder(spec(), tmp_path)


def test_a_prompt_that_is_not_to_be_pooled_is_left_out(tmp_path: Path, reference: Callable[[Path], Any]) -> None:
    config = {**MODES["mean"], "include_prompt": False}
    encoder = Encoder(spec(), tiny.checkpoint(tmp_path, "bert", config, prompts={"query": f"{WORDS[5]} {WORDS[6]} "}))

    wanted = reference(tmp_path).encode_query(TEXTS, batch_size=1)

    assert np.abs(encoder.vectors(TEXTS, is_query=True) - wanted).max() < 1e-5


def test_a_dense_module_behind_pooling_is_applied(tmp_path: Path, reference: Callable[[Path], Any]) -> None:
    from safetensors.torch import save_file

    modules = [
        {"path": path, "type": f"sentence_transformers.models.{name}"}
        for path, name in [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3", "Normalize")]
    ]
    tiny.checkpoint(tmp_path, "bert", MODES["mean"], modules=modules)
    activation = "torch.nn.modules.activation.Tanh"
    head = {"in_features": 32, "out_features": 16, "bias": True, "activation_function": activation}
    tiny.write(tmp_path / "2_Dense/config.json", head)
    weights = {"linear.weight": torch.randn(16, 32), "linear.bias": torch.randn(16)}
    save_file(weights, tmp_path / "2_Dense/model.safetensors")

    encoder = Encoder(spec(), tmp_path)

    assert np.abs(encoder.vectors(TEXTS) - reference(tmp_path).encode(TEXTS)).max() < 1e-5


@pytest.mark.parametrize("name", ["LSTM", "WordWeights"])
def test_a_module_that_is_not_computed_is_refused(name: str, tmp_path: Path) -> None:
    modules = [{"path": "", "type": "Transformer"}, {"path": "1", "type": f"sentence_transformers.models.{name}"}]
    tiny.checkpoint(tmp_path, "bert", MODES["mean"], modules=modules)

    with pytest.raises(ModelLoadFailed, match=f"modules.json has a module {name}"):
        Encoder(spec(), tmp_path)


def test_a_module_outside_the_folder_is_refused(tmp_path: Path) -> None:
    modules = [{"path": "../elsewhere", "type": "sentence_transformers.models.Transformer"}]
    tiny.checkpoint(tmp_path / "here", "bert", MODES["mean"], modules=modules)

    with pytest.raises(ModelLoadFailed, match="a path outside its folder"):
        Encoder(spec(), tmp_path / "here")


def test_texts_of_nothing_but_an_unpooled_prompt_get_zeros() -> None:
    tokens, lengths = torch.ones(5, 4), np.array([2, 3])

    pooled = pooling.pool(["mean"], tokens, lengths, np.array([2, 1]))

    assert pooled.tolist() == [[0.0] * 4, [1.0] * 4]
