"""Section A of the cases: what a score, a vector or a label depends on, and what it must not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import test_gliclass, test_gliner, test_gliner2, tiny
from tests.models.conftest import E5, Encoder, cosines
from tests.models.contract import assert_same, parts_of, plain
from workers.families import Prepared
from workers.families.alone import Alone

LEAST = 0.9999
WORDS = tiny.words()
DOCUMENTS = [" ".join(WORDS[40 : 40 + count]) for count in (3, 1, 20, 7, 45, 12)]
QUERIES = [" ".join(WORDS[5:9]), " ".join(WORDS[200:230])]
NORLAND = "capital of Norland"

Load = Callable[[str], Encoder]
Reference = Callable[[Path], Any]


def prepared(loaded: Alone, *payloads: Payload) -> list[Prepared]:
    """The parts of all these calls, in order."""
    return [part for payload in payloads for found in loaded.preparer.prepare(payload) for part in parts_of(found)]


def asked(query: str, documents: Sequence[str]) -> Payload:
    return Payload([{"text": text} for text in documents], {}, {"text": query})


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "deberta-v2"])
def test_a_pairs_score_does_not_depend_on_its_batch_mates(kind: str, tmp_path: Path) -> None:
    """S005: a document alone, among six, and beside those of another query that meets it in one forward."""
    ranker = Alone(ModelSpec("org/tiny", "cross_encoder", ("score",)), tiny.classifier(tmp_path, kind))
    [alone] = ranker.run(asked(QUERIES[0], DOCUMENTS[:1]))
    among = ranker.run(asked(QUERIES[0], DOCUMENTS))[0]
    parts = prepared(ranker, asked(QUERIES[1], DOCUMENTS[::-1]), asked(QUERIES[0], DOCUMENTS[:1]))

    together = ranker.preparer.finish([ranker.forward(parts)[-1]], parts[-1:], {})

    assert among["score"] == pytest.approx(alone["score"], abs=1e-4)
    assert together["score"] == pytest.approx(alone["score"], abs=1e-4)


@pytest.mark.parametrize("activation", ["Identity", "Sigmoid"])
def test_shares_are_one_sigmoid_of_the_logit_whatever_the_checkpoint_applies(activation: str, tmp_path: Path) -> None:
    """S006: two checkpoints that differ in nothing else answer /v1/rerank, which asks for shares, alike."""
    named = {"activation_fn": f"torch.nn.modules.activation.{activation}"}
    ranker = Alone(
        ModelSpec("org/tiny", "cross_encoder", ("score",)), tiny.classifier(tmp_path, sentence_transformers=named)
    )
    logits, shares = (
        np.array([result["score"] for result in ranker.run(replace(asked(QUERIES[0], DOCUMENTS), options=options))])
        for options in ({"normalize": False}, {"normalize": True})
    )

    assert np.ptp(logits) > 0.2
    assert np.abs(shares - 1 / (1 + np.exp(-logits))).max() < 1e-6
    assert ranker.model.facts()["scores"] == {"Identity": "logits", "Sigmoid": "0 to 1"}[activation]


def test_each_side_has_its_prompt_as_the_library_puts_it(load: Load, reference: Reference) -> None:
    """S008: real weights; the sides differ, and each equals its reference."""
    encoder = load(E5)
    library = reference(encoder.folder)

    query, document = encoder.vectors([NORLAND], is_query=True), encoder.vectors([NORLAND], is_query=False)

    assert cosines(query, library.encode_query([NORLAND])).min() > LEAST
    assert cosines(document, library.encode_document([NORLAND])).min() > LEAST
    assert cosines(query, document).max() < 0.999


@pytest.mark.parametrize(("is_query", "typed"), [(True, "query: "), (False, "passage: ")])
@pytest.mark.parametrize("options", [{}, {"prompt": ""}])
def test_a_prefix_typed_by_hand_is_not_put_twice(
    load: Load, is_query: bool, typed: str, options: dict[str, Any]
) -> None:
    """S008: with prompts left out (`prompt` is empty), and as OpenAI's route asks, which names no side."""
    encoder = load(E5)

    by_hand = encoder.vectors([typed + NORLAND], **options)

    assert np.abs(by_hand - encoder.vectors([NORLAND], is_query=is_query)).max() < 1e-4
    assert cosines(by_hand, encoder.vectors([typed + NORLAND], is_query=is_query)).max() < LEAST


def gliner(folder: Path) -> Alone:
    return Alone(test_gliner.SPEC, test_gliner.checkpoint(folder))


def gliner2(folder: Path) -> Alone:
    return Alone(test_gliner2.SPEC, test_gliner2.checkpoint(folder))


def gliclass(folder: Path) -> Alone:
    return Alone(test_gliclass.SPEC, test_gliclass.checkpoint(folder))


@pytest.fixture(scope="module", params=[gliner, gliner2, gliclass])
def extractor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    found: Alone = request.param(tmp_path_factory.mktemp("extractor"))
    return found


def labels_of(result: dict[str, Any]) -> set[str]:
    return {one["label"] for name in ("entities", "classifications") for one in result.get(name, ())}


@pytest.mark.parametrize("limit", [6, 4, 2, 1])
def test_labels_stay_with_their_call_however_batches_are_cut(extractor: Alone, limit: int) -> None:
    """S012: six calls of one text that meet in a batch, cut after so many.

    Labels belong to a call here, not to an item, so it takes six calls for what the case does in one.
    """
    sailor, baker = WORDS[7], WORDS[11]
    text = " ".join(WORDS[20:50])
    options = [{"labels": [label], "threshold": 0.0} for label in (sailor, sailor, sailor, baker, baker, baker)]
    calls = [Payload([{"text": text}], one) for one in options]
    parts = prepared(extractor, *calls)

    outputs = [output for at in range(0, 6, limit) for output in extractor.forward(parts[at : at + limit])]

    found = [
        extractor.preparer.finish([output], [part], one)
        for output, part, one in zip(outputs, parts, options, strict=True)
    ]
    assert [labels_of(result) for result in found] == [{sailor}] * 3 + [{baker}] * 3
    assert_same(found, [plain(extractor.run(call))[0] for call in calls], 1e-4)
