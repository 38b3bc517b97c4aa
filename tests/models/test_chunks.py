"""Long texts encoded in chunks: all of the text, cut between words, each as it is alone."""

import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import InvalidInput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import test_m3, test_multi_vector, test_sparse, tiny
from tests.models.conftest import MINILM
from workers.families.alone import Alone
from workers.layers import chunks
from workers.weights import pickled

PROSE = (
    "The river rose in the night, and by morning the lower streets were under water. "
    "Nobody had been warned; the gauges upstream had failed a week before.  Insurance\n\nadjusters came "
    "with antidisestablishmentarianism-sized forms, café receipts, naïve hopes — and 日本語のテキスト too. "
) * 12


@pytest.fixture(scope="module")
def minilm(find: Callable[[str], Path]) -> Alone:
    return Alone(ModelSpec("org/minilm", "text_encoder", ("encode",), outputs=("dense",), max_tokens=256), find(MINILM))


def chunked(model: Alone, text: str, chunk: Mapping[str, int], **options: Any) -> list[dict[str, Any]]:
    [result] = model.run(Payload([{"text": text}], {"chunk": chunk, **options}))
    found: list[dict[str, Any]] = result["chunks"]
    return found


@pytest.mark.parametrize("chunk", [{}, {"tokens": 16}, {"tokens": 40, "overlap": 12}, {"tokens": 64, "overlap": 32}])
def test_chunks_are_what_their_texts_are_alone(minilm: Alone, chunk: dict[str, int]) -> None:
    found = chunked(minilm, PROSE, chunk)
    texts = [PROSE[one["start"] : one["end"]] for one in found]
    alone = minilm.run(Payload([{"text": text} for text in texts], {"overflow": "error"}))
    assert len(found) > 1
    same = [
        np.allclose(one["dense"]["values"], other["dense"]["values"], atol=1e-4)
        for one, other in zip(found, alone, strict=True)
    ]
    # a word that had to be cut may be more tokens by itself than it was in the text, and than a chunk may have
    longer = [other["tokens"] > chunk.get("tokens", 256) for other in alone]
    assert sum(longer) < len(found) / 3
    assert same == [not one for one in longer]


@pytest.mark.parametrize("overlap", [0, 10])
def test_every_word_is_in_a_chunk(minilm: Alone, overlap: int) -> None:
    found = chunked(minilm, PROSE, {"tokens": 40, "overlap": overlap})
    covered = np.zeros(len(PROSE), int)
    for one in found:
        own = PROSE[one["start"] : one["end"]]
        assert own == own.strip()
        covered[one["start"] : one["end"]] += 1
    letters = np.array([not letter.isspace() for letter in PROSE])
    assert (covered[letters] >= 1).all()
    assert (covered[letters] > 1).any() is np.bool_(overlap > 0)
    assert [one["start"] for one in found] == sorted({one["start"] for one in found})


def test_a_short_text_is_one_chunk(minilm: Alone) -> None:
    [whole] = minilm.run(Payload([{"text": "A short text."}]))
    [only] = chunked(minilm, "A short text.", {})
    assert (only["start"], only["end"]) == (0, 13)
    assert np.allclose(only["dense"]["values"], whole["dense"]["values"], atol=1e-5)


@pytest.mark.parametrize("text", ["", "   "])
def test_a_text_without_words_is_one_chunk(minilm: Alone, text: str) -> None:
    [only] = chunked(minilm, text, {})
    assert (only["start"], only["end"]) == (0, len(text))


def test_a_word_without_end_is_cut(minilm: Alone) -> None:
    found = chunked(minilm, "x" * 3000, {"tokens": 32})
    assert found[0]["start"] == 0 and found[-1]["end"] == 3000
    assert all(one["end"] == other["start"] for one, other in itertools.pairwise(found))


def test_usage_counts_all_chunks(minilm: Alone) -> None:
    [result] = minilm.run(Payload([{"text": PROSE}], {"chunk": {"tokens": 64}}))
    [truncated] = minilm.run(Payload([{"text": PROSE}]))
    assert result["tokens"] > 2 * truncated["tokens"]
    assert truncated["truncated"] and not result["truncated"]


def test_chunks_and_texts_share_a_call_with_bad_items(minilm: Alone) -> None:
    items: list[dict[str, Any]] = [{"text": "short"}, {"token_ids": [101, 102]}, {"text": PROSE}]
    short, bad, long = minilm.run(Payload(items, {"chunk": {"tokens": 64}}))
    assert len(short["chunks"]) == 1 and len(long["chunks"]) > 3
    assert bad["error"]["param"] == "items[1].text"


def test_a_text_of_too_many_chunks_is_refused(minilm: Alone) -> None:
    [result] = minilm.run(Payload([{"text": "so " * 60_000}], {"chunk": {"tokens": 16}}))
    assert result["error"]["code"] == "INPUT_TOO_LONG"


@pytest.mark.parametrize("options", [{"chunk": {"overlap": 200}}, {"chunk": {}, "prompt": "word " * 300}])
def test_chunks_without_room_are_refused(minilm: Alone, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        minilm.run(Payload([{"text": "a"}], options))
    assert caught.value.param == "options.chunk"


def test_a_prompt_stands_before_every_chunk(minilm: Alone) -> None:
    found = chunked(minilm, PROSE, {"tokens": 40}, prompt="passage: ")
    texts = [PROSE[one["start"] : one["end"]] for one in found]
    alone = minilm.run(Payload([{"text": text} for text in texts], {"prompt": "passage: "}))
    same = [
        np.allclose(one["dense"]["values"], other["dense"]["values"], atol=1e-4)
        for one, other in zip(found, alone, strict=True)
    ]
    assert same == [other["tokens"] <= 40 for other in alone]
    assert sum(same) > len(same) * 2 / 3


def sparse(folder: Path) -> Alone:
    return Alone(test_sparse.spec(), test_sparse.masked("bert", folder, test_sparse.TestSplade.pooling))


def colbert(folder: Path) -> Alone:
    test_multi_vector.native("bert", folder, test_multi_vector.UNATTENDED)
    return Alone(test_multi_vector.spec(), folder)


def m3(folder: Path) -> Alone:
    test_m3.published(folder)
    return Alone(test_m3.spec(), pickled.converted(test_m3.spec(), folder, folder / "cache"))


@pytest.mark.parametrize(
    ("make", "outputs"), [(sparse, ["sparse"]), (colbert, ["multivector"]), (m3, ["dense", "sparse", "multivector"])]
)
def test_every_output_can_be_had_in_chunks(make: Callable[[Path], Alone], outputs: list[str], tmp_path: Path) -> None:
    model, text = make(tmp_path), " ".join(tiny.words()[:150])
    found = chunked(model, text, {"tokens": 32, "overlap": 4}, output_types=outputs)
    items = [{"text": text[one["start"] : one["end"]]} for one in found]
    alone = model.run(Payload(items, {"output_types": outputs}))
    assert len(found) > 3
    for one, other in zip(found, alone, strict=True):
        for output in outputs:
            assert np.allclose(one[output]["values"], other[output]["values"], atol=1e-4)


def test_cuts_never_pass_through_what_fits(minilm: Alone) -> None:
    """Random texts: chunks cover all words in order, none is larger than its room."""
    chance = random.Random(0)
    tokenizer = minilm.preparer._reader.tokenizer  # type: ignore[attr-defined]
    for _ in range(200):
        words = ["".join(chance.choices("abcé漢 字\n", k=chance.randint(1, 30))) for _ in range(chance.randint(0, 60))]
        text = chance.choice((" ", "\n\n", "  ")).join(words)
        [encoding] = tokenizer.read_places([text])
        room = chance.randint(4, 30)
        found = chunks.cut(text, encoding, room, chance.randint(0, room // 2))
        joined = "".join(text[one.start : one.end] for one in chunks.cut(text, encoding, room, 0))
        assert "".join(joined.split()) == "".join(text.split())
        assert all(one.last - one.first <= room for one in found)
        assert [one.start for one in found] == sorted(one.start for one in found)
