"""Packed where that is equal to each text alone, padded where it is not: decided by trying, for every architecture."""

from pathlib import Path

import numpy as np
import pytest

from protocol.spec import ModelSpec
from tests.models import tiny
from workers.families import text_encoder

# DeBERTa's code scripts its functions, which torch is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:FutureWarning")

SPEC = ModelSpec("org/tiny", "text_encoder", ("encode",), load={"pooling": "mean"})
LENGTHS = (5, 17, 9, 30, 9, 2)

PACKS = ["bert", "roberta", "xlm-roberta", "electra", "albert", "modernbert", "qwen2", "qwen3", "mistral", "gemma3"]
PADS = ["mpnet", "deberta-v2", "t5"]


def loaded(kind: str, folder: Path) -> text_encoder.TextEncoder:
    tiny.bare(kind, folder)
    return text_encoder.load(SPEC, folder, "cpu", lambda share: None)


def inputs() -> list[dict[str, np.ndarray]]:
    chance = np.random.default_rng(1)
    return [{"ids": chance.integers(5, tiny.VOCABULARY, length).astype(np.int32)} for length in LENGTHS]


def vectors(model: text_encoder.TextEncoder, batch: list[dict[str, np.ndarray]]) -> np.ndarray:
    return np.stack([output["dense"] for output in model.forward(batch, None)])


@pytest.mark.parametrize("kind", PACKS)
def test_architectures_whose_attention_goes_through_the_interface_are_packed(kind: str, tmp_path: Path) -> None:
    model = loaded(kind, tmp_path)

    assert model.facts()["padded_because"] is None
    assert model.packed


@pytest.mark.parametrize("kind", PADS)
def test_architectures_with_attention_of_their_own_are_padded_and_say_why(kind: str, tmp_path: Path) -> None:
    model = loaded(kind, tmp_path)

    assert not model.packed
    assert "packed" in str(model.facts()["padded_because"])


@pytest.mark.parametrize("kind", [*PACKS, *PADS, "distilbert"])
def test_a_vector_does_not_depend_on_its_batch(kind: str, tmp_path: Path) -> None:
    model = loaded(kind, tmp_path)
    batch = inputs()

    together = vectors(model, batch)

    alone = np.concatenate([vectors(model, [one]) for one in batch])
    assert np.abs(together - alone).max() < 1e-5
