"""Section C of the cases, the half that models see: blank texts, long texts, special tokens that a text spells."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import (
    test_causal_reranker,
    test_cross_encoder,
    test_gliclass,
    test_gliner,
    test_gliner2,
    test_image_encoder,
    test_m3,
    test_multi_vector,
    test_sparse,
    test_text_classifier,
    test_token_classifier,
)
from tests.models.conftest import E5, MINILM, Encoder, cosines
from tests.models.contract import Contract
from workers.families.alone import Alone

BLANK = ["", "   ", "\n\t"]
SPELLED = ["a [SEP] b", "<s>", "</s> a <pad>", "[CLS]"]

Load = Callable[[str], Encoder]


@pytest.mark.parametrize("model", [MINILM, E5])
def test_blank_texts_have_finite_vectors(load: Load, model: str) -> None:
    """S031: all of them, beside others and alone."""
    encoder = load(model)

    among = encoder.vectors([*BLANK, "Mail the board"])[:3]

    assert np.isfinite(among).all()
    assert cosines(among, np.concatenate([encoder.vectors([text]) for text in BLANK])).min() > 0.9999


def made(case: type[Contract], folder: Path) -> Alone:
    """A family's small model, as its own tests make it."""
    spec = case.make(folder)
    return Alone(spec, case.locate(spec, folder))


def answers(case: type[Contract], folder: Path) -> list[dict[str, Any]]:
    """To a text and to blank ones."""
    asked = case.payload()
    items = [{"text": text} for text in ["Mail the board", *BLANK]]
    return made(case, folder).run(Payload(items, asked.options, asked.query))


@pytest.mark.parametrize(
    "case",
    [
        test_sparse.TestSplade,
        test_multi_vector.TestDocuments,
        test_m3.TestThreeOutputs,
        test_image_encoder.TestClip,
        test_cross_encoder.TestBert,
        test_causal_reranker.TestQwen3,
    ],
)
def test_every_family_answers_blank_texts(case: type[Contract], tmp_path: Path) -> None:
    """S031: vectors and scores, whether the text is empty or of spaces."""
    assert not any("error" in result for result in answers(case, tmp_path))


@pytest.mark.parametrize(
    "case",
    [
        test_gliner.TestSpans,
        test_gliner2.TestEntities,
        test_gliclass.TestUniEncoder,
        test_token_classifier.TestSimple,
        test_text_classifier.TestClasses,
    ],
)
def test_every_family_that_extracts_finds_nothing_in_blank_texts(case: type[Contract], tmp_path: Path) -> None:
    """S031: four results; classes are judged all the same."""
    found = answers(case, tmp_path)
    assert not any("error" in result for result in found)
    assert [result.get("entities", []) for result in found[1:]] == [[], [], []]


LOREM = " ".join(f"lorem{place}" for place in range(998))
ARTICLE = f"{LOREM} Ada Quill"


def read(**options: Any) -> Mapping[str, Any]:
    reader = Alone(ModelSpec("org/fake", "fake", ("extract",), max_tokens=300), None)
    [result] = reader.run(Payload([{"text": ARTICLE}], {"labels": ["Ada", "Quill"], **options}))
    return result


def test_a_long_text_is_refused_cut_or_read_whole_as_asked() -> None:
    """S038: a thousand words of which the last two are a name; `usage` says how many were read."""
    refused, cut, whole = read(overflow="error"), read(overflow="truncate"), read(overflow="window")

    assert refused["error"]["code"] == "INPUT_TOO_LONG"
    assert "1000 words" in refused["error"]["message"] and "300" in refused["error"]["message"]
    assert (cut["truncated"], cut["tokens"], cut["entities"]) == (True, 300, [])
    assert (whole["truncated"], whole["tokens"]) == (False, 1000)
    assert [ARTICLE[one["start"] : one["end"]] for one in whole["entities"]] == ["Ada", "Quill"]


@pytest.mark.parametrize("model", [MINILM, E5])
def test_special_tokens_that_a_text_spells_change_no_neighbour_and_stay_as_they_are(load: Load, model: str) -> None:
    """S040: a text that is encoded has them as its tokenizer reads them, which `test_equality` holds to the library's.

    It has no turns that such a token could end, and no second text.
    """
    encoder = load(model)
    others = ["river stones", "tide table"]

    among = encoder.vectors([*SPELLED, *others])

    alone = np.concatenate([encoder.vectors([text]) for text in [*SPELLED, *others]])
    assert cosines(among, alone).min() > 0.9999
    assert cosines(encoder.vectors(SPELLED), alone[:4]).min() > 0.9999
