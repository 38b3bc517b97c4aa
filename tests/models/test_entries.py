"""Shipped entries say what the family understands and, where the files are here, what the files say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from catalog import loader
from catalog.snapshot import Model
from protocol.errors import ModelLoadFailed
from tests.models import tiny
from tests.models.conftest import E5, MINILM, PARAPHRASE, Encoder, shipped, spec
from workers.families import text_encoder
from workers.layers import checkpoint

ENTRIES = {
    entry.model.spec.model: entry.model
    for entry in loader.load([loader.ENTRIES])
    if entry.model.spec.family == "text_encoder"
}
PROMPTS_IN_THE_CHECKPOINT = {"google/embeddinggemma-300m"}


@pytest.mark.parametrize("model", ENTRIES.values(), ids=ENTRIES)
def test_load_options_are_ones_the_family_has(model: Model) -> None:
    checkpoint.check_options(model.spec)

    assert not model.spec.remote_code
    assert model.spec.source.repo == model.spec.model


@pytest.mark.parametrize("model", ENTRIES.values(), ids=ENTRIES)
def test_a_profile_that_asks_for_a_prompt_has_one(model: Model) -> None:
    known = set(model.spec.load.get("prompts", {}))
    asked = set(model.profiles) - {"default"}

    assert asked <= known or model.spec.model in PROMPTS_IN_THE_CHECKPOINT


@pytest.mark.parametrize("model", [MINILM, E5, PARAPHRASE])
def test_what_ships_in_packages_is_as_its_entry_says(load: Callable[[str], Encoder], model: str) -> None:
    facts, said = load(model).model.facts(), shipped(model)

    assert facts["dims"] == said.dims["dense"]
    assert facts["max_tokens"] == said.max_tokens
    assert facts["packed"]


def test_a_model_of_another_width_than_its_entry_says_does_not_load(tmp_path: Path) -> None:
    tiny.bare("bert", tmp_path)

    with pytest.raises(ModelLoadFailed, match="says 64 dimensions, it gives 32"):
        text_encoder.load(replace(spec(pooling="cls"), dims={"dense": 64}), tmp_path, "cpu", lambda share: None)


def test_a_checkpoint_that_lacks_weights_does_not_load(tmp_path: Path) -> None:
    """Transformers would fill them with random numbers."""
    from safetensors.numpy import load_file, save_file

    file = tiny.bare("bert", tmp_path) / "model.safetensors"
    weights = load_file(file)
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, file, metadata={"format": "pt"})

    with pytest.raises(ModelLoadFailed, match=r"weights missing .*layer\.1\.output\.dense\.weight"):
        text_encoder.load(spec(pooling="cls"), tmp_path, "cpu", lambda share: None)
