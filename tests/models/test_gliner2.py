"""GLiNER2 checkpoints against the library's own extraction calls."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import checkpoints
from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract, assert_same, parts_of, plain
from workers.families import gliner2
from workers.families.alone import Alone

LABELS = ["bako", "person", "lofo zaro"]
SPEC = ModelSpec("org/gliner2", "gliner2", ("extract",), max_tokens=160)
WORDS = tiny.words(200)
TEXTS = [" ".join(WORDS[count : 2 * count]) + "." for count in (1, 3, 8, 20, 40)]
LOW = 0.2
SCHEMA = {
    "entities": {"person": "a human", "bako": "a place"},
    "classifications": [
        {"task": "mood", "labels": ["good", "bad", "so so"]},
        {"task": "topics", "labels": ["sea", "land", "air"], "multi_label": True, "cls_threshold": 0.5},
    ],
    "structures": {
        "order": {
            "fields": [
                {"name": "item", "dtype": "str"},
                {"name": "places", "dtype": "list"},
                {"name": "size", "dtype": "str", "choices": ["small", "large"]},
            ]
        }
    },
    "relations": ["works for", "lives in"],
}
JSON_SCHEMA = {
    "title": "order",
    "type": "object",
    "properties": {
        "item": {"type": "string", "description": "what was bought"},
        "places": {"type": "array", "items": {"type": "string"}},
        "size": {"enum": ["small", "large"]},
    },
}


def checkpoint(folder: Path) -> Path:
    return checkpoints.gliner2(folder, tiny.checkpoint(folder / "encoder", "bert", max_tokens=400))


def boundary_checkpoint(folder: Path) -> Path:
    """Of the other architecture, GLiNER2.5's."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gliner2.auto import AutoExtractor
        from gliner2.configuration import ExtractorConfig

        encoder = tiny.checkpoint(folder / "encoder", "bert", max_tokens=400)
        torch.manual_seed(0)
        config: Any = ExtractorConfig(model_name=str(encoder), architecture="boundary")
        AutoExtractor.from_config(config).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("gliner2"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Alone:
    return Alone(SPEC, folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return library(folder)


def library(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gliner2.auto import AutoExtractor

        return AutoExtractor.from_pretrained(str(folder))


def as_entities(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    entities = [
        {"text": one["text"], "label": label, "score": one["confidence"], "start": one["start"], "end": one["end"]}
        for label, spans in (found["entities"] or {}).items()
        for one in spans
    ]
    return sorted(entities, key=lambda one: (one["start"], one["end"]))


def extract(loaded: Alone, text: str, **options: Any) -> dict[str, Any]:
    [result] = loaded.run(Payload([{"text": text}], options))
    return result


class TestEntities(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        checkpoint(folder)
        return SPEC

    @classmethod
    def payload(cls) -> Payload:
        return Payload([{"text": text} for text in TEXTS], {"labels": LABELS, "threshold": LOW})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        model, asked = library(folder), {"threshold": LOW, "include_confidence": True, "include_spans": True}
        found = [as_entities(model.extract_entities(item["text"], LABELS, **asked)) for item in payload.items]
        assert any(found), "nothing is found, so nothing is compared"
        return [{"entities": entities} for entities in found]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": b"x"}]}


class TestBoundaryEntities(TestEntities):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        boundary_checkpoint(folder)
        return SPEC


def test_every_section_of_a_schema_is_what_the_library_answers(loaded: Alone, theirs: Any) -> None:
    from gliner2.inference.schema import Schema

    payload = Payload([{"text": text} for text in TEXTS], {"output_schema": SCHEMA, "threshold": LOW})
    full = [
        theirs.extract(text, Schema.from_dict(SCHEMA), threshold=LOW, include_confidence=True, include_spans=True)
        for text in TEXTS
    ]
    bare = [theirs.extract(text, Schema.from_dict(SCHEMA), threshold=LOW) for text in TEXTS]

    found = plain(loaded.run(payload))

    assert any(one["order"] for one in bare)
    for ours, with_scores, without in zip(found, full, bare, strict=True):
        assert_same(ours["entities"], as_entities(with_scores), 1e-4)
        assert ours["data"] == {"order": without["order"] or []}
        assert ours["classifications"][0]["label"] == without["mood"]
        assert {one["label"] for one in ours["classifications"][1:]} == set(without["topics"])
        pairs = [(one["head"], one["tail"], one["relation"]) for one in ours["relations"]]
        assert set(pairs) == {
            (head, tail, name) for name, found in without["relation_extraction"].items() for head, tail in found
        }
        assert len(pairs) == len(set(pairs))


def test_a_json_schema_becomes_one_object(loaded: Alone, theirs: Any) -> None:
    fields = ["item::str::what was bought", "places::list", "size::[small|large]::str"]
    expected = [theirs.extract_json(text, {"order": fields}, threshold=LOW)["order"] for text in TEXTS]
    payload = Payload([{"text": text} for text in TEXTS], {"output_schema": JSON_SCHEMA, "threshold": LOW})

    found = [result["data"] for result in loaded.run(payload)]

    assert any(instances for instances in expected)
    for ours, instances in zip(found, expected, strict=True):
        assert ours.keys() == {"item", "places", "size"}
        assert ours["item"] == next((one["item"] for one in instances if one["item"]), None)
        assert ours["places"] == list(dict.fromkeys(text for one in instances for text in one["places"]))
        assert ours["size"] == next((one["size"] for one in instances if one["size"]), None)


@pytest.mark.parametrize("multi_label", [True, False])
def test_classes_are_scored_as_the_library_scores_them(loaded: Alone, theirs: Any, multi_label: bool) -> None:
    how = {"multi_label": multi_label, "cls_threshold": 0.0}
    options = {"labels": LABELS, "task": "classification", "multi_label": multi_label}

    found = loaded.run(Payload([{"text": text} for text in TEXTS], options))

    for ours, text in zip(found, TEXTS, strict=True):
        answer = theirs.classify_text(text, {"classification": {"labels": LABELS, **how}}, include_confidence=True)
        chosen = answer["classification"]
        expected = sorted(chosen if multi_label else [chosen], key=lambda one: -one["confidence"])
        ranked = ours["classifications"]
        assert len(ranked) == len(LABELS)
        assert_same(
            ranked[: len(expected)],
            [{"label": one["label"], "score": one["confidence"]} for one in expected],
            1e-4,
        )


def test_a_threshold_and_a_number_leave_the_best_classes(loaded: Alone) -> None:
    asked = {"labels": LABELS, "task": "classification"}
    everything = extract(loaded, TEXTS[2], **asked)["classifications"]

    assert extract(loaded, TEXTS[2], **asked, top_k=1)["classifications"] == everything[:1]
    assert extract(loaded, TEXTS[2], **asked, threshold=everything[1]["score"])["classifications"] == everything[:2]


def test_calls_with_other_schemas_share_a_forward(loaded: Alone) -> None:
    asked: list[dict[str, Any]] = [
        {"labels": ["person"]},
        {"output_schema": SCHEMA},
        {"labels": LABELS, "task": "classification"},
    ]
    payloads = [Payload([{"text": TEXTS[3]}], {**options, "threshold": LOW}) for options in asked]
    parts = [part for payload in payloads for found in loaded.preparer.prepare(payload) for part in parts_of(found)]

    together = loaded.forward(parts)

    assert len({part.key for part in parts}) == 1
    for payload, part, output in zip(payloads, parts, together, strict=True):
        ours = loaded.preparer.finish([output], [part], payload.options)
        assert_same([ours], plain(loaded.run(payload)), 1e-4)


def test_a_long_text_is_read_to_its_end(loaded: Alone) -> None:
    text = " ".join(WORDS)

    result = extract(loaded, text, labels=LABELS, threshold=LOW)

    assert not result["truncated"]
    assert max(one["end"] for one in result["entities"]) > len(text) - 80
    assert all(text[one["start"] : one["end"]] == one["text"] for one in result["entities"])
    places = [(one["start"], one["end"], one["label"]) for one in result["entities"]]
    assert len(places) == len(set(places))


def test_a_text_too_long_is_refused_where_that_is_asked(loaded: Alone) -> None:
    error = extract(loaded, " ".join(WORDS), labels=LABELS, overflow="error")["error"]

    assert error["code"] == InputTooLong.code
    assert "200 words" in error["message"]


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_a_blank_text_has_nothing(loaded: Alone, text: str) -> None:
    result = plain([extract(loaded, text, output_schema=SCHEMA)])[0]

    assert result == {"entities": [], "classifications": [], "relations": [], "data": {"order": []}}


def test_a_text_without_a_full_stop_has_entities_of_its_own_characters_only(loaded: Alone) -> None:
    text = " ".join(WORDS[:30])

    found = extract(loaded, text, labels=LABELS, threshold=0.01)["entities"]

    assert found
    assert all(text[one["start"] : one["end"]] == one["text"] and one["text"] for one in found)


def test_redaction_leaves_nothing_that_was_found(loaded: Alone) -> None:
    result = extract(loaded, TEXTS[4], labels=LABELS, task="redact", threshold=LOW)

    assert result["entities"]
    assert not any(one["text"] in result["data"]["text"] for one in result["entities"])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "needs labels or an output_schema"),
        ({"labels": ["a [E] b"]}, "marker"),
        ({"labels": LABELS, "task": "summarise"}, "one of entities, classification, redact"),
        ({"output_schema": {"tables": {}}}, "not a section"),
        ({"output_schema": {"entities": ["a"]}, "labels": ["b"]}, "beside entities"),
        ({"output_schema": {"structures": {"entities": {"fields": []}}}}, "may not call a part 'entities'"),
        ({"output_schema": {"type": "array", "properties": {"a": {}}}}, "object with properties"),
        ({"output_schema": {"properties": {"age": {"type": "integer"}}}}, "property 'age' must be a string"),
        ({"labels": WORDS[:60]}, "leaves no room for text"),
    ],
)
def test_what_cannot_be_asked_is_refused(loaded: Alone, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        extract(loaded, TEXTS[1], **options)


@pytest.mark.parametrize(
    "schema", [{"entities": {}}, {"classifications": [{"task": "mood"}]}, {"structures": {"order": {"fields": "item"}}}]
)
def test_a_schema_the_library_does_not_take_harms_no_neighbour(loaded: Alone, schema: dict[str, Any]) -> None:
    payloads = [Payload([{"text": TEXTS[3]}], {"output_schema": one}) for one in (SCHEMA, schema)]
    parts = [part for payload in payloads for found in loaded.preparer.prepare(payload) for part in parts_of(found)]

    good, bad = loaded.forward(parts)

    [alone] = plain(loaded.run(payloads[0]))
    assert_same(loaded.preparer.finish([good], parts[:1], payloads[0].options), alone, 1e-4)
    with pytest.raises(InvalidInput, match="not a schema GLiNER2 takes"):
        loaded.preparer.finish([bad], parts[1:], payloads[1].options)


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    copy = tiny.copy(folder, tmp_path / "copy")
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")

    with pytest.raises(ModelLoadFailed, match="pickles are not read"):
        gliner2.preparer(SPEC, copy)


@pytest.mark.parametrize("make", [checkpoint, boundary_checkpoint])
def test_a_checkpoint_that_lacks_weights_does_not_load(make: Callable[[Path], Path], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = make(tmp_path)
    weights = load_file(folder / "model.safetensors")
    kept = {name: array for name, array in weights.items() if "classifier" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises((ModelLoadFailed, RuntimeError), match="classifier"):
        Alone(SPEC, folder)


def test_a_load_option_it_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"load\.pooling is unknown"):
        gliner2.preparer(replace(SPEC, load={"pooling": "mean"}), folder)
