"""Vectors are those of sentence-transformers on the same weights, alone and in whatever batch they meet."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import texts
from tests.models.conftest import E5, MINILM, PARAPHRASE, Encoder, cosines

LEAST = 0.9999
TOGETHER = 8

# what tokenizers and careless code stumble over
ODD = [
    "",
    "   ",
    "\n\n a\t b ",
    "Héllo Wörld, 北京 и мир",
    "[CLS] typed [SEP] by </s> a user <pad> [PAD] [MASK]",
    "a" * 700,
]

Load = Callable[[str], Encoder]
Reference = Callable[[Path], Any]


def check(encoder: Encoder, reference: Reference, sample: list[str]) -> None:
    wanted = reference(encoder.folder).encode(sample, batch_size=1, show_progress_bar=False)
    shuffled = random.Random(0).sample(range(len(sample)), len(sample))

    alone = np.concatenate([encoder.vectors([text]) for text in sample])
    mixed = np.empty_like(alone)
    for start in range(0, len(sample), TOGETHER):
        chosen = shuffled[start : start + TOGETHER]
        mixed[chosen] = encoder.vectors([sample[index] for index in chosen])

    assert cosines(alone, wanted).min() > LEAST
    assert cosines(mixed, wanted).min() > LEAST


@pytest.mark.parametrize("model", [MINILM, E5, PARAPHRASE])
def test_vectors_equal_sentence_transformers(load: Load, reference: Reference, model: str) -> None:
    check(load(model), reference, texts.spread(24) + ODD)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("model", "count"), [(MINILM, 500), (E5, 150)])  # the second has twice the layers
def test_many_vectors_equal_sentence_transformers(load: Load, reference: Reference, model: str, count: int) -> None:
    check(load(model), reference, texts.spread(count))


def test_lengths_are_those_of_sentence_transformers_too(load: Load, reference: Reference) -> None:
    """PARAPHRASE does not normalise."""
    encoder = load(PARAPHRASE)
    sample = texts.spread(8)

    ours = encoder.vectors(sample)

    assert np.abs(ours - reference(encoder.folder).encode(sample)).max() < 1e-4


def test_prompts_give_what_encode_query_and_encode_document_give(load: Load, reference: Reference) -> None:
    """S008: both sides, real weights."""
    encoder, library = load(E5), reference(load(E5).folder)
    sample = ["how much protein per day", "Adults need about 50 g."]

    queries, documents = encoder.vectors(sample, is_query=True), encoder.vectors(sample, is_query=False)

    assert cosines(queries, library.encode_query(sample)).min() > LEAST
    assert cosines(documents, library.encode_document(sample)).min() > LEAST
    assert cosines(queries, documents).max() < 0.999


def test_e5_finds_the_answer_across_languages(load: Load) -> None:
    encoder = load(E5)

    question = encoder.vectors(["Wie viel Eiweiß braucht ein Mensch am Tag?"], is_query=True)
    answers = encoder.vectors(["Adults need about 50 g of protein a day.", "Boil the pumpkin."], is_query=False)

    right, wrong = (question @ answers.T)[0]
    assert right > wrong + 0.05


def test_paraphrases_are_near_and_others_are_not(load: Load) -> None:
    near = load(PARAPHRASE).vectors(
        ["A man is eating food.", "A man is eating a piece of bread.", "Rain in the north."]
    )

    unit = near / np.linalg.norm(near, axis=1, keepdims=True)

    assert (unit @ unit.T)[0, 1] == pytest.approx(0.7799, abs=2e-3)  # measured with onnxruntime on the file it ships as
    assert (unit @ unit.T)[0, 2] < 0.3


def test_the_same_text_always_gets_the_same_vector_and_no_other_does(minilm: Encoder) -> None:
    text = "tide table for the north quay"
    others = texts.mixed(40)
    wanted = minilm.vectors([text])[0]

    found = [minilm.vectors([*others[at : at + 10], text])[-1] for at in range(0, 40, 10)]

    assert all(np.abs(vector - wanted).max() < 1e-5 for vector in found)
    assert (minilm.vectors(others) @ wanted).max() < 0.99
