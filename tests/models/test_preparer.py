"""The worker's half of a text encoder: what is read, cut, counted and refused, from many threads at once."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import texts
from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed
from tests.models import tiny
from tests.models.conftest import E5, MINILM, Encoder, cosines, prepared, spec
from workers.batching import Entry, form_batch
from workers.families import Prepared, text_encoder

MEAN = {"pooling_mode_mean_tokens": True}
WORDS = tiny.words(60)

Load = Callable[[str], Encoder]


@pytest.fixture
def small(tmp_path: Path) -> text_encoder.TextPreparer:
    """Reads 16 tokens, one per word, with one special token at each end; has prompts."""
    prompts = {"query": f"{WORDS[0]} ", "document": f"{WORDS[1]} "}
    folder = tiny.checkpoint(tmp_path, "bert", MEAN, max_tokens=16, prompts=prompts)
    return text_encoder.preparer(spec(instruction_template=f"{WORDS[2]} {{instruction}} "), folder)


def ids_of(preparer: text_encoder.TextPreparer, item: str | dict[str, Any], **options: Any) -> list[int]:
    [outcome] = prepared(preparer, [{"text": item} if isinstance(item, str) else item], options)
    assert isinstance(outcome, Prepared), outcome
    return [int(token) for token in outcome.inputs["ids"]]


def word(index: int) -> int:
    """The id of WORDS[index]; four special tokens come first."""
    return index + 4


def test_preparing_needs_no_torch(find: Callable[[str], Path]) -> None:
    """It runs in the worker process, which must stay small."""
    code = f"""
import sys
from pathlib import Path
from protocol.messages import Payload
from protocol.spec import ModelSpec
from workers.families import text_encoder
preparer = text_encoder.preparer(ModelSpec("a/b", "text_encoder", ("encode",)), Path({str(find(MINILM))!r}))
[[part]] = preparer.prepare(Payload([{{"text": "hello"}}]))
assert part.tokens == 3
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_16_threads_read_as_one_does(minilm: Encoder) -> None:
    """S004: truncating and refusing calls at once, on one tokenizer."""
    sample = texts.spread(60, longest=600)
    plans = [(text, overflow) for text in sample for overflow in ("truncate", "error")] * 4
    random.Random(0).shuffle(plans)

    def outcome(plan: tuple[str, str]) -> tuple[Any, ...]:
        [found] = prepared(minilm.preparer, [{"text": plan[0]}], {"overflow": plan[1]})
        if isinstance(found, InputTooLong):
            return (found.extra["tokens"],)
        assert isinstance(found, Prepared)
        return (found.tokens, found.truncated, found.inputs["ids"].tobytes())

    wanted = [outcome(plan) for plan in plans]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(outcome, plans)) == wanted


def test_a_long_text_is_cut_with_its_special_tokens_kept(small: text_encoder.TextPreparer) -> None:
    [cut] = prepared(small, [{"text": " ".join(WORDS[:40])}], {})

    assert isinstance(cut, Prepared)
    assert cut.inputs["ids"].tolist() == [1, *(word(index) for index in range(14)), 2]
    assert (cut.tokens, cut.cost, cut.truncated) == (16, 16, True)


def test_a_text_of_exactly_the_limit_is_not_cut(small: text_encoder.TextPreparer) -> None:
    [whole] = prepared(small, [{"text": " ".join(WORDS[:14])}], {"overflow": "error"})

    assert isinstance(whole, Prepared)
    assert (whole.tokens, whole.truncated) == (16, False)


def test_overflow_error_refuses_the_item_and_says_by_how_much(small: text_encoder.TextPreparer) -> None:
    fits, refused = prepared(small, [{"text": "ok"}, {"text": " ".join(WORDS[:15])}], {"overflow": "error"})

    assert isinstance(fits, Prepared)
    assert isinstance(refused, InputTooLong)
    assert "17 tokens" in refused.message
    assert refused.extra == {"tokens": 17, "limit": 16}


def test_checkpoints_that_cut_at_the_beginning_are_cut_there(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, "bert", MEAN, max_tokens=16)
    settings = folder / "tokenizer_config.json"
    tiny.write(settings, {**json.loads(settings.read_text()), "truncation_side": "left"})

    found = ids_of(text_encoder.preparer(spec(), folder), " ".join(WORDS[:40]))

    assert found == [1, *(word(index) for index in range(26, 40)), 2]


def test_an_empty_text_is_its_special_tokens_and_gets_a_finite_vector(minilm: Encoder) -> None:
    [part] = minilm.prepare([""])

    assert part.tokens == 2
    assert np.linalg.norm(minilm.vectors([""])[0]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({}, []),
        ({"is_query": True}, [0]),
        ({"is_query": False}, [1]),
        ({"is_query": True, "prompt": ""}, []),
        ({"is_query": True, "prompt": f"{WORDS[9]} "}, [9]),
        ({"instruction": WORDS[8]}, [2, 8]),
        ({"instruction": WORDS[8], "is_query": True}, [2, 8]),
        ({"instruction": WORDS[8], "is_query": False}, [1]),
    ],
)
def test_one_prompt_is_put_before_the_text_once(
    small: text_encoder.TextPreparer, options: dict[str, Any], before: list[int]
) -> None:
    """S008: `prompt` is empty where it was typed by hand."""
    wanted = [1, *(word(index) for index in before), word(30), 2]

    assert ids_of(small, WORDS[30], **options) == wanted
    assert ids_of(small, {"token_ids": [word(30)]}, **options) == wanted


def test_an_instruction_to_a_model_that_takes_none_is_refused(minilm: Encoder) -> None:
    with pytest.raises(InvalidInput, match="takes no instruction") as caught:
        prepared(minilm.preparer, [{"text": "x"}], {"instruction": "find"})

    assert caught.value.param == "options.instruction"


def test_outputs_it_does_not_have_are_refused(minilm: Encoder) -> None:
    with pytest.raises(InvalidInput, match="dense vectors only"):
        prepared(minilm.preparer, [{"text": "x"}], {"output_types": ["dense", "sparse"]})


@pytest.mark.parametrize("model", [MINILM, E5])
def test_own_token_ids_give_the_vector_of_the_string(load: Load, model: str) -> None:
    """S017: with the special tokens around, as a tokenizer gives them, and without."""
    encoder = load(model)
    whole = [int(token) for token in encoder.prepare(["hello"])[0].inputs["ids"]]

    found = encoder.vectors(["hello", {"token_ids": whole}, {"token_ids": whole[1:-1]}])

    assert cosines(found, found[:1]).min() > 0.9999
    assert [item.tokens for item in encoder.prepare([{"token_ids": whole[1:-1]}])] == [len(whole)]


def test_token_ids_are_cut_like_text(small: text_encoder.TextPreparer) -> None:
    whole = [1, *(word(index) for index in range(40)), 2]

    assert ids_of(small, {"token_ids": whole}) == ids_of(small, " ".join(WORDS[:40]))


def test_token_ids_outside_the_vocabulary_are_refused(minilm: Encoder) -> None:
    fine, refused = prepared(minilm.preparer, [{"token_ids": [101, 30521]}, {"token_ids": [5, 30522]}], {})

    assert isinstance(fine, Prepared)
    assert isinstance(refused, InvalidInput)
    assert refused.param == "token_ids"
    assert "token_ids[1] must be below 30522" in refused.message


def test_an_item_without_text_is_refused_alone(minilm: Encoder) -> None:
    refused, fine = prepared(minilm.preparer, [{"images": []}, {"text": "x"}], {})

    assert isinstance(refused, InvalidInput)
    assert isinstance(fine, Prepared)


def test_lower_casing_beside_the_tokenizers_own(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, "bert", MEAN)
    tiny.write(folder / "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": True})

    assert ids_of(text_encoder.preparer(spec(), folder), WORDS[7].upper()) == [1, word(7), 2]


def test_a_vocabulary_without_tokenizer_json_is_read_as_bert_reads_it(
    tmp_path: Path, find: Callable[[str], Path], minilm: Encoder
) -> None:
    folder = tiny.copy(find(MINILM), tmp_path / "old")
    (folder / "tokenizer.json").unlink()
    old = text_encoder.preparer(spec(), folder)

    sample = ["Unaffable résumés, 北京!", "[CLS] typed [MASK] by a user"]

    assert [ids_of(old, text) for text in sample] == [ids_of(minilm.preparer, text) for text in sample]


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, "bert", MEAN)
    (folder / "tokenizer.json").unlink()

    with pytest.raises(ModelLoadFailed, match=r"neither tokenizer\.json nor vocab\.txt"):
        text_encoder.preparer(spec(), folder)


def test_a_folder_with_pickles_only_is_refused(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, "bert", MEAN)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(ModelLoadFailed, match="pickles are not read"):
        text_encoder.preparer(spec(), folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"poling": "cls"}, "load.poling is unknown"),
        ({"pooling": "average"}, "load.pooling is 'average', not one of mean"),
        ({"dtype": "int4"}, "load.dtype is 'int4'"),
        ({"instruction_template": "Instruct:"}, "lacks {instruction}"),
    ],
)
def test_load_options_are_checked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path, "bert", MEAN)

    with pytest.raises(ModelLoadFailed, match=message):
        text_encoder.preparer(spec(**options), folder)


@pytest.mark.parametrize(("kind", "limit"), [("bert", 512), ("xlm-roberta", 130 - 2), ("qwen3", 256)])
def test_positions_bound_the_length_when_no_file_does(kind: str, limit: int, tmp_path: Path) -> None:
    encoder = Encoder(spec(), tiny.checkpoint(tmp_path, kind, MEAN, max_tokens=None))

    [longest] = encoder.prepare(["word " * 1000])

    assert longest.tokens == limit == encoder.model.facts()["max_tokens"]
    assert np.isfinite(encoder.vectors(["word " * 1000])).all()


def test_a_text_larger_than_the_budget_is_a_batch_of_its_own(minilm: Encoder) -> None:
    """S014: budget 100, limit 256."""
    long, short = minilm.prepare(["quay " * 500, "quay"])
    entries = [Entry(None, index, item, arrival=index) for index, item in enumerate([long, short])]

    batch = form_batch(entries, now=2.0, budget=100, max_items=64, packed=True)

    assert [entry.index for entry in batch] == [0]
    assert len(minilm.model.forward([long.inputs], None)) == 1


def test_batches_are_bounded_in_items_and_in_tokens(minilm: Encoder) -> None:
    """S016: ten requests of 32 texts of about 50 tokens, at most 64 items and 2000 tokens."""
    parts = minilm.prepare(texts.mixed(32)) * 10
    entries = [Entry(None, index, part, arrival=index) for index, part in enumerate(parts)]
    batches = []
    while entries:
        batch = form_batch(entries, now=400.0, budget=2000, max_items=64, packed=minilm.model.packed)
        entries = [entry for entry in entries if entry not in batch]
        batches.append(batch)

    assert max(len(batch) for batch in batches) <= 64
    assert max(sum(entry.cost for entry in batch) for batch in batches) <= 2000
    assert sum(len(batch) for batch in batches) == 320
