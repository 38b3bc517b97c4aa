"""GLiClass checkpoints against the library's pipeline."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import transformers

from bench import checkpoints
from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract, assert_same, parts_of, plain
from workers.families import gliclass
from workers.families.alone import Alone

library: Any = transformers
LABELS = ["bako", "sport", "lofo zaro", "x"]
SPEC = ModelSpec("org/classes", "gliclass", ("extract",), max_tokens=64)
WORDS = tiny.words(200)


def checkpoint(folder: Path, kind: str = "bert", **changes: Any) -> Path:
    special = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=tiny.word_tokenizer(), model_max_length=128, **special)
    return checkpoints.gliclass(folder, tiny.config(kind), tokenizer, **changes)


def pipeline(folder: Path) -> Any:
    from gliclass import GLiClassModel, ZeroShotClassificationPipeline

    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    return ZeroShotClassificationPipeline(
        GLiClassModel.from_pretrained(folder), tokenizer, max_length=64, device="cpu", progress_bar=False
    ).pipe


def scores(
    pipe: Any, text: str, kind: str, labels: list[str] = LABELS, prompt: str | None = None
) -> list[dict[str, Any]]:
    [found] = pipe(text, labels, threshold=0.0, classification_type=kind, return_hierarchical=True, prompt=prompt)
    return [{"label": label, "score": found[label]} for label in sorted(labels, key=lambda label: -found[label])]


class TestUniEncoder(ExtractContract):
    kind = "bert"
    changes: ClassVar[Mapping[str, Any]] = {"prompt_first": True}

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        checkpoint(folder, cls.kind, **cls.changes)
        return SPEC

    @classmethod
    def payload(cls) -> Payload:
        texts = [" ".join(WORDS[count : 2 * count]) for count in (1, 3, 8, 20, 40)]
        return Payload([{"text": text} for text in texts], {"labels": LABELS})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        pipe = pipeline(folder)
        return [{"classifications": scores(pipe, item["text"], "single-label")} for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"text": "a <<LABEL>> b"}

    def test_several_classes_are_scored_as_the_library_does(self, loaded: Alone) -> None:
        payload = self.payload()
        assert loaded.folder is not None
        pipe = pipeline(loaded.folder)

        found = plain(loaded.run(Payload(payload.items, {"labels": LABELS, "multi_label": True})))

        expected = [{"classifications": scores(pipe, item["text"], "multi-label")} for item in payload.items]
        assert_same(found, expected, 1e-4)

    def test_an_instruction_stands_where_the_library_puts_it(self, loaded: Alone) -> None:
        text, said = " ".join(WORDS[:9]), " ".join(WORDS[50:54]) + " "
        assert loaded.folder is not None

        [found] = loaded.run(Payload([{"text": text}], {"labels": LABELS, "instruction": said}))

        assert_same(found["classifications"], scores(pipeline(loaded.folder), text, "single-label", prompt=said), 1e-4)

    def test_calls_with_other_labels_share_a_forward(self, loaded: Alone) -> None:
        item = self.payload().items[2]
        payloads = [Payload([item], {"labels": labels}) for labels in (["x"], LABELS, WORDS[:20])]
        parts = [part for payload in payloads for found in loaded.preparer.prepare(payload) for part in parts_of(found)]

        together = loaded.forward(parts)

        assert len({part.key for part in parts}) == 1
        for payload, part, output in zip(payloads, parts, together, strict=True):
            ours = loaded.preparer.finish([output], [part], payload.options)
            assert_same([ours], plain(loaded.run(payload)), 1e-4)


class TestTextFirst(TestUniEncoder):
    changes: ClassVar[Mapping[str, Any]] = {"prompt_first": False, "pooling_strategy": "avg"}


class TestDeberta(TestUniEncoder):
    kind = "deberta-v2"
    changes: ClassVar[Mapping[str, Any]] = {
        "prompt_first": True,
        "class_token_pooling": "average",
        "scorer_type": "weighted-dot",
        "normalize_features": True,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("gliclass"), prompt_first=True)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Alone:
    return Alone(SPEC, folder)


def extract(loaded: Alone, text: str, **options: Any) -> dict[str, Any]:
    [result] = loaded.run(Payload([{"text": text}], {"labels": LABELS, **options}))
    return result


def test_single_label_scores_are_shares(loaded: Alone) -> None:
    assert sum(one["score"] for one in extract(loaded, "bako")["classifications"]) == pytest.approx(1.0)


def test_only_the_best_are_given_where_that_is_asked(loaded: Alone) -> None:
    everything = extract(loaded, "bako")["classifications"]

    assert extract(loaded, "bako", top_k=2)["classifications"] == everything[:2]


def test_a_threshold_leaves_out_what_scores_less(loaded: Alone) -> None:
    everything = extract(loaded, "bako")["classifications"]

    assert extract(loaded, "bako", threshold=everything[1]["score"])["classifications"] == everything[:2]


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_a_blank_text_has_no_class(loaded: Alone, text: str) -> None:
    assert extract(loaded, text)["classifications"] == []


def test_a_truncated_text_is_marked_and_scored_as_the_library_does(loaded: Alone, folder: Path) -> None:
    text = " ".join(WORDS)

    result = extract(loaded, text, overflow="truncate")

    assert result["truncated"]
    assert_same(result["classifications"], scores(pipeline(folder), text, "single-label"), 1e-4)


def test_a_text_too_long_is_refused_where_that_is_asked(loaded: Alone) -> None:
    error = extract(loaded, " ".join(WORDS), overflow="error")["error"]

    assert error["code"] == InputTooLong.code
    assert "200 tokens" in error["message"]


def test_a_class_that_one_window_shows_is_found_in_a_long_text(loaded: Alone) -> None:
    text = " ".join(WORDS)
    parts = parts_of(loaded.preparer.prepare(Payload([{"text": text}], {"labels": LABELS}))[0])
    outputs = [{"logits": np.full(4, -9.0, np.float32)} for _ in parts]
    outputs[-1]["logits"][2] = 9.0

    result = loaded.preparer.finish(outputs, parts, {"multi_label": True})

    assert len(parts) > 2
    assert result["classifications"][0]["label"] == LABELS[2]
    assert result["classifications"][0]["score"] > 0.99


def test_the_one_class_of_a_long_text_is_that_of_most_of_it(loaded: Alone) -> None:
    parts = parts_of(loaded.preparer.prepare(Payload([{"text": " ".join(WORDS)}], {"labels": LABELS}))[0])
    outputs = [{"logits": np.array([0, 4, 0, 0], np.float32)} for _ in parts]
    outputs[-1]["logits"][2] = 5.0

    assert loaded.preparer.finish(outputs, parts, {})["classifications"][0]["label"] == LABELS[1]


def test_labels_are_needed(loaded: Alone) -> None:
    with pytest.raises(InvalidInput, match="needs the labels"):
        loaded.run(Payload([{"text": "a"}], {}))


@pytest.mark.parametrize("options", [{"labels": ["a<<SEP>>"]}, {"instruction": "<<LABEL>> a"}])
def test_a_marker_in_what_is_asked_is_refused(loaded: Alone, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="marker"):
        extract(loaded, "a", **options)


def test_labels_that_leave_no_room_for_text_are_refused(loaded: Alone) -> None:
    error = extract(loaded, "bako", labels=WORDS[:40])["error"]

    assert "leaves no room for text" in error["message"]


def test_scores_that_are_no_numbers_are_not_given_out(loaded: Alone) -> None:
    parts = parts_of(loaded.preparer.prepare(Payload([{"text": "bako"}], {"labels": LABELS}))[0])

    with pytest.raises(NonFiniteOutput):
        loaded.preparer.finish([{"logits": np.full(4, np.nan)}], parts, {})


def test_a_checkpoint_that_lacks_weights_does_not_load(folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    copy = tiny.copy(folder, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    kept = {name: array for name, array in weights.items() if "classes_projector" not in name}
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelLoadFailed, match=r"weights missing.*classes_projector"):
        Alone(SPEC, copy)


def test_another_architecture_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = tiny.copy(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "architecture_type": "bi-encoder"}))

    with pytest.raises(ModelLoadFailed, match="but 'bi-encoder'"):
        gliclass.preparer(SPEC, copy)


def test_a_load_option_it_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"load\.pooling is unknown"):
        gliclass.preparer(replace(SPEC, load={"pooling": "mean"}), folder)
