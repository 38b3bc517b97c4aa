"""Token classifiers against transformers' pipeline, and what the pipeline cannot: long texts, redaction."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract, assert_same, plain
from workers.families.alone import Alone

library: Any = transformers
LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "LOC"]
SPEC = ModelSpec("org/tags", "token_classifier", ("extract",))
LIMIT = 64


def word_pieces() -> Tokenizer:
    """BERT's kind: pieces of words are marked `##`."""
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *".,()-", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in pieces[:4]])
    return tokenizer


def checkpoint(folder: Path, kind: str = "bert") -> Path:
    torch.manual_seed(3)
    config = tiny.config(kind)
    config.num_labels = len(LABELS)
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {label: index for index, label in enumerate(LABELS)}
    model = library.AutoModelForTokenClassification.from_config(config)
    model.classifier.weight.data *= 30
    model.save_pretrained(folder)
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=word_pieces(), model_max_length=LIMIT, **special)
    tokenizer.save_pretrained(folder)
    return folder


def pipeline(folder: Path, texts: Sequence[str], strategy: str) -> list[list[dict[str, Any]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tag = library.pipeline("token-classification", str(folder), device="cpu", aggregation_strategy=strategy)
        return [[_entity(text, one) for one in tag(text)] for text in texts]


def _entity(text: str, one: Mapping[str, Any]) -> dict[str, Any]:
    place = {"start": one["start"], "end": one["end"]}
    return {
        "text": text[one["start"] : one["end"]],
        "label": one["entity_group"],
        "score": float(one["score"]),
        **place,
    }


class TestSimple(ExtractContract):
    kind = "bert"
    strategy = "simple"

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        checkpoint(folder, cls.kind)
        return replace(SPEC, load={"aggregation": cls.strategy})

    @classmethod
    def payload(cls) -> Payload:
        texts = ["a", "abc, bad", "Abc (def)-ghi  ZZZ. ij", "face badge cab jig hid", "fade hid " * 6]
        return Payload([{"text": text} for text in texts])

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        found = pipeline(folder, [item["text"] for item in payload.items], cls.strategy)
        assert sum(map(len, found)) > len(found), "too little is found to compare"
        return [{"entities": entities} for entities in found]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": b"x"}]}


class TestFirst(TestSimple):
    strategy = "first"


class TestModernBert(TestSimple):
    kind = "modernbert"

    def test_it_is_packed(self, loaded: Alone) -> None:
        assert loaded.model.packed


class TestDeberta(TestSimple):
    kind = "deberta-v2"

    def test_it_is_padded_and_says_why(self, loaded: Alone) -> None:
        assert not loaded.model.packed
        assert loaded.model.facts()["padded_because"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("tags"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Alone:
    return Alone(SPEC, folder)


def extract(loaded: Alone, text: str, **options: Any) -> dict[str, Any]:
    [result] = loaded.run(Payload([{"text": text}], options))
    return result


def test_an_encoder_of_berts_kind_is_packed(loaded: Alone) -> None:
    assert loaded.model.packed


def test_a_long_text_is_read_to_its_end(loaded: Alone, folder: Path) -> None:
    text = " ".join(["bad", "cab", "hid", "jig"] * 30)

    result = extract(loaded, text)

    assert not result["truncated"]
    assert max(entity["end"] for entity in result["entities"]) > len(text) - 20
    assert all(text[one["start"] : one["end"]] == one["text"] for one in result["entities"])
    places = [(one["start"], one["end"]) for one in result["entities"]]
    assert all(before[1] <= after[0] for before, after in pairwise(places))


def test_a_truncated_text_is_marked_and_what_is_read_is_the_pipelines(loaded: Alone, folder: Path) -> None:
    text = " ".join(["bad", "cab", "hid", "jig"] * 30)

    result = extract(loaded, text, overflow="truncate")

    assert result["truncated"]
    assert_same(plain([result])[0]["entities"], pipeline(folder, [text], "simple")[0], 1e-4)


def test_a_text_too_long_is_refused_where_that_is_asked(loaded: Alone) -> None:
    error = extract(loaded, "bad " * 40, overflow="error")["error"]

    assert error["code"] == InputTooLong.code
    assert "120 tokens" in error["message"]


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_a_blank_text_has_no_entities(loaded: Alone, text: str) -> None:
    assert extract(loaded, text)["entities"] == []


def test_labels_choose_among_what_is_found(loaded: Alone) -> None:
    text = "Abc (def)-ghi  ZZZ. ij face badge cab jig"
    everything = extract(loaded, text)["entities"]
    kinds = {entity["label"] for entity in everything}
    assert len(kinds) > 1

    for kind in kinds:
        found = extract(loaded, text, labels=[kind])["entities"]
        assert found == [entity for entity in everything if entity["label"] == kind]


def test_an_unknown_label_is_refused_by_name(loaded: Alone) -> None:
    with pytest.raises(InvalidInput, match="knows no 'CITY'; it knows LOC, ORG, PER"):
        extract(loaded, "abc", labels=["CITY"])


def test_a_threshold_leaves_out_what_is_less_sure(loaded: Alone) -> None:
    text = "Abc (def)-ghi  ZZZ. ij face badge cab jig"
    scores = sorted(entity["score"] for entity in extract(loaded, text)["entities"])

    found = extract(loaded, text, threshold=scores[1])["entities"]

    assert len(found) == len(scores) - 1


def test_redaction_leaves_nothing_that_was_found(loaded: Alone) -> None:
    text = "Abc (def)-ghi  ZZZ. ij face badge cab jig"

    result = extract(loaded, text, task="redact")

    rest = text
    for entity in reversed(result["entities"]):
        rest = rest[: entity["start"]] + f"[{entity['label']}]" + rest[entity["end"] :]
    assert result["entities"]
    assert result["data"]["text"] == rest


def test_a_task_it_does_not_know_is_refused(loaded: Alone) -> None:
    with pytest.raises(InvalidInput, match="one of entities, redact"):
        extract(loaded, "abc", task="summarise")


def test_scores_that_are_no_numbers_are_not_given_out(loaded: Alone) -> None:
    [parts] = loaded.preparer.prepare(Payload([{"text": "abc"}]))
    assert isinstance(parts, list)
    [output] = loaded.model.forward([parts[0].inputs], None)

    with pytest.raises(NonFiniteOutput):
        loaded.preparer.finish([{**output, "scores": output["scores"] * np.nan}], parts, {})


def test_a_checkpoint_without_its_head_does_not_load(folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    copy = tiny.copy(folder, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    kept = {name: array for name, array in weights.items() if "classifier" not in name}
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelLoadFailed, match=r"weights missing.*classifier"):
        Alone(SPEC, copy)


def test_an_aggregation_it_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="'average', not of simple, first"):
        Alone(replace(SPEC, load={"aggregation": "average"}), folder)


def test_a_checkpoint_without_labels_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = tiny.copy(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config.pop("id2label")
    (copy / "config.json").write_text(json.dumps(config))

    with pytest.raises(ModelLoadFailed, match="names no labels"):
        Alone(SPEC, copy)
