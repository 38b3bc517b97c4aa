"""What a GLiNER model is asked and how its folder may look: windows, refusals, redaction, tokenizers elsewhere."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from tokenizers import Tokenizer, normalizers

from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed
from protocol.messages import Payload
from tests.models import tiny
from tests.models.contract import assert_same, parts_of
from tests.models.test_gliner import LABELS, SPEC, WORDS, checkpoint, library
from workers.families import gliner
from workers.families.alone import Alone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("gliner"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Alone:
    return Alone(SPEC, folder)


def extract(loaded: Alone, text: str, **options: Any) -> dict[str, Any]:
    [result] = loaded.run(Payload([{"text": text}], {"labels": LABELS, **options}))
    return result


def places(result: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    return [(one["start"], one["end"], one["label"]) for one in result["entities"]]


def test_a_long_text_is_read_to_its_end(loaded: Alone) -> None:
    """S038: what stands last is found, with offsets into the whole text."""
    text = " ".join(WORDS[:190])

    result = extract(loaded, text, threshold=0.3)

    assert not result["truncated"]
    assert max(end for _, end, _ in places(result)) > len(text) - 60
    assert all(text[one["start"] : one["end"]] == one["text"] for one in result["entities"])
    assert all(before[1] <= after[0] for before, after in pairwise(places(result)))


def test_a_truncated_text_is_marked_and_what_is_read_is_the_librarys(loaded: Alone, folder: Path) -> None:
    """S038: `usage` says how much was read."""
    text = " ".join(WORDS[:190])

    result = extract(loaded, text, overflow="truncate")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = library(folder).predict_entities(text, LABELS)
    assert result["truncated"]
    assert_same(result["entities"], theirs, 1e-4)


def test_a_text_too_long_is_refused_where_that_is_asked(loaded: Alone) -> None:
    """S038: with its words; the limit is beside them."""
    error = extract(loaded, " ".join(WORDS[:190]), overflow="error")["error"]

    assert error["code"] == InputTooLong.code
    assert "190 words" in error["message"]


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_a_blank_text_has_no_entities(loaded: Alone, text: str) -> None:
    """S031: nothing to read, nothing found."""
    assert extract(loaded, text)["entities"] == []


def test_labels_are_needed(loaded: Alone) -> None:
    with pytest.raises(InvalidInput, match="needs the labels"):
        loaded.run(Payload([{"text": "a"}], {}))


@pytest.mark.parametrize("label", ["<<ENT>>", "a <<SEP>> b"])
def test_a_label_with_a_marker_in_it_is_refused(loaded: Alone, label: str) -> None:
    with pytest.raises(InvalidInput, match="marker"):
        extract(loaded, "a", labels=[label])


def test_a_marker_in_a_text_is_only_text(loaded: Alone, folder: Path) -> None:
    text = f"{WORDS[3]} <<ENT>> {WORDS[60]} <<SEP>> {WORDS[90]} " + " ".join(WORDS[20:50])

    assert_same(extract(loaded, text)["entities"], library(folder).predict_entities(text, LABELS), 1e-4)


def test_labels_that_leave_no_room_for_text_are_refused(loaded: Alone) -> None:
    with pytest.raises(InvalidInput, match="leaves no room for text"):
        extract(loaded, "a", labels=[" ".join([word] * 2) for word in WORDS[:60]])


def test_many_labels_make_windows_smaller(loaded: Alone) -> None:
    text, labels = " ".join(WORDS[:60]), WORDS[100:140]

    parts = parts_of(loaded.preparer.prepare(Payload([{"text": text}], {"labels": labels}))[0])

    assert len(parts) > 1
    assert all(
        output["read"] == len(part.about.places) for part, output in zip(parts, loaded.forward(parts), strict=True)
    )


def test_words_the_tokenizer_cut_are_not_passed_over(loaded: Alone) -> None:
    payload = Payload([{"text": " ".join(WORDS[:9])}], {"labels": LABELS})
    [part] = parts_of(loaded.preparer.prepare(payload)[0])
    [output] = loaded.forward([part])

    with pytest.raises(InputTooLong, match="read 5 words of 9"):
        loaded.preparer.finish([{**output, "read": 5}], [part], payload.options)


@pytest.fixture(scope="module")
def dropping(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """With a tokenizer that drops zero-width spaces, as many do."""
    copy = tiny.copy(folder, tmp_path_factory.mktemp("dropping") / "copy")
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Replace("\u200b", "")
    tokenizer.save(str(copy / "tokenizer.json"))
    return Alone(SPEC, copy)


def test_words_without_tokens_move_no_offsets(dropping: Alone) -> None:
    words = WORDS[20:60]
    bare, text = " ".join(words), " ".join(["\u200b", *words[:3], "\u200b \u200b", *words[3:]])

    expected, found = extract(dropping, bare), extract(dropping, text)

    assert expected["entities"]
    assert [one["label"] for one in found["entities"]] == [one["label"] for one in expected["entities"]]
    assert [one["text"].replace("\u200b ", "") for one in found["entities"]] == [
        one["text"] for one in expected["entities"]
    ]
    assert all(text[one["start"] : one["end"]] == one["text"] for one in found["entities"])


def test_a_text_of_nothing_the_tokenizer_keeps_has_no_entities(dropping: Alone) -> None:
    items = [{"text": text} for text in ("\u200b", " ".join(WORDS[:9]), "\u200b \u200b")]

    results = dropping.run(Payload(items, {"labels": LABELS, "threshold": 0.01}))

    assert results[0]["entities"] == results[2]["entities"] == []
    assert results[1]["entities"]


def test_a_label_of_nothing_the_tokenizer_keeps_is_refused(dropping: Alone) -> None:
    with pytest.raises(InvalidInput, match="no character that the model reads"):
        extract(dropping, "a", labels=["person", "\u200b"])


def test_redaction_replaces_what_was_found(loaded: Alone) -> None:
    text = " ".join(WORDS[20:60])

    result = extract(loaded, text, task="redact")

    assert result["entities"]
    assert all(f"[{entity['label']}]" in result["data"]["text"] for entity in result["entities"])
    assert not any(entity["text"] in result["data"]["text"] for entity in result["entities"])


def test_a_task_it_does_not_know_is_refused(loaded: Alone) -> None:
    with pytest.raises(InvalidInput, match="one of entities, redact"):
        extract(loaded, "a", task="relations")


def test_neighbours_of_one_label_become_one_where_the_entry_says_so(folder: Path, loaded: Alone) -> None:
    text = " ".join(WORDS[20:60])
    merging = Alone(replace(SPEC, load={"merge_adjacent": True}), folder)

    found, merged = extract(loaded, text, threshold=0.2), extract(merging, text, threshold=0.2)

    assert len(merged["entities"]) < len(found["entities"])
    assert all(text[one["start"] : one["end"]] == one["text"] for one in merged["entities"])
    assert all(before[1] + 1 < after[0] or before[2] != after[2] for before, after in pairwise(places(merged)))


def changed(folder: Path, place: Path, **settings: Any) -> Path:
    copy = tiny.copy(folder, place)
    config = json.loads((copy / "gliner_config.json").read_text())
    (copy / "gliner_config.json").write_text(json.dumps({**config, **settings}))
    return copy


@pytest.mark.parametrize(
    "settings", [{"labels_decoder": "org/gpt"}, {"words_splitter_type": "jieba"}, {"relations_layer": "dot"}]
)
def test_a_kind_of_checkpoint_it_does_not_read_is_refused(
    folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(ModelLoadFailed, match=next(iter(settings))):
        gliner.preparer(SPEC, changed(folder, tmp_path / "copy", **settings))


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    copy = tiny.copy(folder, tmp_path / "copy")
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")

    with pytest.raises(ModelLoadFailed, match="pickles are not read"):
        gliner.preparer(SPEC, copy)


def test_a_checkpoint_that_lacks_weights_does_not_load(folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    copy = tiny.copy(folder, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    save_file({name: array for name, array in weights.items() if "span_rep" not in name}, copy / "model.safetensors")

    with pytest.raises(ModelLoadFailed, match=r"weights missing: span_rep"):
        Alone(SPEC, copy)


def bare(folder: Path, place: Path) -> Path:
    """As older checkpoints are: tokenizer and encoder's config stand in the encoder's own repo."""
    copy = changed(folder, place, model_name="org/encoder", encoder_config=None)
    for file in [*copy.glob("token*"), *copy.glob("special*")]:
        file.unlink()
    return copy


def cached(hub: Path, repo: str, source: Path) -> str:
    """A repo in a Hugging Face cache."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    tiny.copy(source, hub / f"models--{repo.replace('/', '--')}" / "snapshots" / revision)
    return revision


def test_a_tokenizer_left_to_the_hub_is_found_in_its_cache(
    folder: Path, loaded: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    source = tiny.copy(folder / "encoder", tmp_path / "source")
    for file in folder.glob("token*"):
        (source / file.name).write_bytes(file.read_bytes())
    revision = cached(tmp_path / "hub", "org/encoder", source)
    spec = replace(SPEC, load={"tokenizers": {"org/encoder": revision}})

    old = Alone(spec, bare(folder, tmp_path / "copy"))

    text = " ".join(WORDS[20:60])
    assert_same(extract(old, text)["entities"], extract(loaded, text)["entities"], 1e-4)


def test_a_tokenizer_left_to_the_hub_must_be_pinned_in_the_entry(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"needs the tokenizer of org/encoder: say its revision"):
        Alone(SPEC, bare(folder, tmp_path / "copy"))


def test_a_tokenizer_that_is_not_here_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = replace(SPEC, load={"tokenizers": {"org/encoder": "0" * 40}})

    with pytest.raises(ModelLoadFailed, match="tokenizer of org/encoder at 000000000000 is not in"):
        Alone(spec, bare(folder, tmp_path / "copy"))
