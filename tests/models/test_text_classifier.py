"""Text classifiers equal transformers' pipelines: classes of the model's own, and any labels by inference."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from protocol.errors import InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract
from workers.families import text_classifier
from workers.families.alone import Alone

# DeBERTa's code scripts its functions, which torch is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:FutureWarning")

WORDS = tiny.words()
TEXTS = [" ".join(WORDS[40 : 40 + count]) for count in (1, 2, 7, 20, 45)]
LONG = " ".join(WORDS[100:190])  # more than the 64 tokens that the tiny models read
CLASSES = ("SAFE", "INJECTION", "OTHER")
INFERENCE = ("contradiction", "neutral", "entailment")
ANY = [WORDS[200], f"{WORDS[201]} {WORDS[202]}", " ".join(WORDS[203:208])]


def spec(**load: Any) -> ModelSpec:
    return ModelSpec("org/tiny", "text_classifier", ("extract",), load=load)


def payload(texts: Sequence[str], **options: Any) -> Payload:
    return Payload([{"text": text} for text in texts], options)


def classes(result: Mapping[str, Any]) -> dict[str, float]:
    return {found["label"]: found["score"] for found in result["classifications"]}


class ClassifierContract(ExtractContract):
    kind = "bert"
    labels: ClassVar[Sequence[str]] = CLASSES
    settings: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Mapping[str, Any]] = {"overflow": "truncate"}
    is_packed = True

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        tiny.classifier(folder, cls.kind, cls.labels, **cls.settings)
        return spec()

    @classmethod
    def payload(cls) -> Payload:
        return payload([*TEXTS, LONG], **cls.options)

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        made = tiny.library.pipeline("text-classification", str(folder), device="cpu", top_k=None)
        texts = [item["text"] for item in payload.items]
        return [{"classifications": made([text], truncation=True, max_length=64)[0]} for text in texts]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [1]}

    def test_it_is_packed_where_it_can_be(self, loaded: Alone) -> None:
        assert loaded.model.facts()["packed"] is self.is_packed


class TestClasses(ClassifierContract):
    pass


class TestSeveralClassesAtOnce(ClassifierContract):
    kind = "xlm-roberta"
    settings: ClassVar[Mapping[str, Any]] = {"problem_type": "multi_label_classification"}


class TestGuard(ClassifierContract):
    """The layout of prompt guards: DeBERTa, two classes."""

    kind = "deberta-v2"
    labels: ClassVar[Sequence[str]] = CLASSES[:2]
    is_packed = False


class ZeroShotContract(ClassifierContract):
    labels: ClassVar[Sequence[str]] = INFERENCE
    options: ClassVar[Mapping[str, Any]] = {"labels": ANY, "overflow": "truncate"}

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        made = tiny.library.pipeline("zero-shot-classification", str(folder), device="cpu")
        asked = {"candidate_labels": list(ANY), "multi_label": bool(payload.options.get("multi_label"))}
        found = [made(item["text"], **asked) for item in payload.items]
        return [
            {
                "classifications": [
                    {"label": label, "score": score} for label, score in zip(one["labels"], one["scores"], strict=True)
                ]
            }
            for one in found
        ]


class TestAnyLabel(ZeroShotContract):
    pass


class TestAnyLabelsAtOnce(ZeroShotContract):
    """bart-large-mnli's layout: a head that reads the state of the end token, so the whole model runs."""

    kind = "bart"
    options: ClassVar[Mapping[str, Any]] = {"labels": ANY, "overflow": "truncate", "multi_label": True}
    is_packed = False


class TestTwoWayInference(ZeroShotContract):
    """The zeroshot models' layout: entailment comes first, and there is no neutral."""

    kind = "deberta-v2"
    labels: ClassVar[Sequence[str]] = ("entailment", "not_entailment")
    options: ClassVar[Mapping[str, Any]] = {"labels": ANY, "overflow": "truncate", "multi_label": True}
    is_packed = False


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tiny.classifier(tmp_path_factory.mktemp("guard"), labels=CLASSES)
    return Alone(spec(alarm="INJECTION"), folder)


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tiny.classifier(tmp_path_factory.mktemp("inference"), labels=INFERENCE)
    return Alone(spec(hypothesis_template=f"{WORDS[210]} {{}}"), folder)


def test_the_best_classes_come_first_and_no_more_than_asked(guard: Alone) -> None:
    [every] = guard.run(payload(TEXTS[:1]))
    [best] = guard.run(payload(TEXTS[:1], top_k=1))
    [likely] = guard.run(payload(TEXTS[:1], threshold=every["classifications"][1]["score"]))

    scores = [found["score"] for found in every["classifications"]]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1.0)
    assert best["classifications"] == every["classifications"][:1]
    assert likely["classifications"] == every["classifications"][:2]


def test_classes_are_judged_each_by_itself_if_asked(guard: Alone) -> None:
    [together], [each] = guard.run(payload(TEXTS[:1])), guard.run(payload(TEXTS[:1], multi_label=True))
    assert sum(classes(each).values()) != pytest.approx(sum(classes(together).values()), abs=1e-3)


def test_a_long_text_is_read_to_its_end(guard: Alone) -> None:
    [whole] = guard.run(payload([LONG]))
    [start] = guard.run(payload([LONG], overflow="truncate"))
    assert (whole["truncated"], start["truncated"]) == (False, True)
    assert whole["tokens"] > start["tokens"] == 64


def test_the_window_that_alarms_most_counts(guard: Alone) -> None:
    text = " ".join(WORDS[:200])
    windows = shares(guard, text)
    loudest = windows[windows[:, 1].argmax()]

    [found] = guard.run(payload([text]))

    assert len(windows) > 3 and np.ptp(windows[:, 1]) > 1e-3
    assert [classes(found)[name] for name in CLASSES] == pytest.approx(loudest.tolist(), abs=1e-6)


def shares(loaded: Alone, text: str) -> np.ndarray:
    """What each window of a text says."""
    [parts] = loaded.preparer.prepare(payload([text]))
    assert isinstance(parts, list)
    powers = np.exp(np.stack([output["logits"] for output in loaded.forward(parts)]).astype(np.float64))
    found: np.ndarray = powers / powers.sum(1, keepdims=True)
    return found


def test_windows_count_by_their_length_without_an_alarm(tmp_path: Path) -> None:
    plain = Alone(spec(), tiny.classifier(tmp_path, labels=CLASSES))
    [joined] = plain.run(payload([LONG]))
    [parts] = plain.preparer.prepare(payload([LONG]))
    assert isinstance(parts, list)
    wanted = np.average(shares(plain, LONG), axis=0, weights=[part.tokens - 2 for part in parts])

    assert len(parts) == 2
    assert [classes(joined)[name] for name in CLASSES] == pytest.approx(wanted.tolist(), abs=1e-6)


def test_a_long_text_that_may_not_be_cut_is_refused_alone(guard: Alone) -> None:
    short, long = guard.run(payload([TEXTS[0], LONG], overflow="error"))
    assert "classifications" in short
    assert long["error"]["code"] == "INPUT_TOO_LONG"


def test_a_text_of_too_many_forwards_is_refused_alone(inference: Alone) -> None:
    labels = [f"{WORDS[index % 300]} {WORDS[index // 300]}" for index in range(600)]
    short, long = inference.preparer.prepare(payload([TEXTS[0], " ".join(WORDS[:300] * 2)], labels=labels))
    assert isinstance(short, list) and len(short) == 600
    assert getattr(long, "code", None) == "INPUT_TOO_LONG"


def test_a_call_of_too_many_forwards_is_refused(inference: Alone) -> None:
    labels = [f"{WORDS[index % 300]} {WORDS[index // 300]}" for index in range(600)]
    with pytest.raises(InvalidInput, match="fewer") as caught:
        inference.preparer.prepare(payload([TEXTS[0]] * 60, labels=labels))
    assert caught.value.param == "items"


def test_labels_are_put_into_the_entrys_template(inference: Alone) -> None:
    [parts] = inference.preparer.prepare(payload(TEXTS[:1], labels=[WORDS[211]]))
    assert isinstance(parts, list)
    known = tiny.word_tokenizer().get_vocab()
    assert parts[0].inputs["ids"].tolist()[-3:-1] == [known[WORDS[210]], known[WORDS[211]]]


def test_a_long_text_is_judged_for_every_label_in_every_window(inference: Alone) -> None:
    [result] = inference.run(payload([LONG], labels=ANY))
    assert sum(classes(result).values()) == pytest.approx(1.0)
    assert classes(result).keys() == set(ANY)


@pytest.mark.parametrize(
    ("model", "options", "param"),
    [
        ("guard", {"labels": ["a"]}, "options.labels"),
        ("inference", {}, "options.labels"),
        ("inference", {"labels": ["a", " ".join(WORDS[:80])]}, "options.labels"),
        ("guard", {"instruction": "find"}, "options.instruction"),
    ],
)
def test_what_makes_a_whole_call_impossible_is_named(
    request: pytest.FixtureRequest, model: str, options: dict[str, Any], param: str
) -> None:
    loaded = request.getfixturevalue(model)
    with pytest.raises(InvalidInput) as caught:
        loaded.preparer.prepare(payload(TEXTS, **options))
    assert caught.value.param == param


def test_a_score_that_is_no_number_is_never_given(guard: Alone) -> None:
    [parts] = guard.preparer.prepare(payload(TEXTS[:1]))
    assert isinstance(parts, list)
    with pytest.raises(NonFiniteOutput):
        guard.preparer.finish([{"logits": np.array([0, np.nan, 1], np.float32)}], parts, {})


@pytest.mark.parametrize(
    ("load", "said"),
    [({"alarm": "DANGER"}, "load.alarm"), ({"hypothesis_template": "about"}, "lacks"), ({"labels": ["a"]}, "unknown")],
)
def test_an_entry_that_does_not_fit_its_model_is_refused(tmp_path: Path, load: dict[str, Any], said: str) -> None:
    folder = tiny.classifier(tmp_path, labels=CLASSES)
    with pytest.raises(ModelLoadFailed, match=said):
        text_classifier.preparer(spec(**load), folder)
