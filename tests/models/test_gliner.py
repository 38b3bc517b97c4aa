"""GLiNER checkpoints of every kind against the library that made them."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract, assert_same, parts_of, plain
from workers.families.alone import Alone

LABELS = ["bako", "person", "lofo zaro"]
SPEC = ModelSpec("org/gliner", "gliner", ("extract",))
WORDS = tiny.words(200)


def checkpoint(folder: Path, *, threshold_spread: float = 3.0, **changes: Any) -> Path:
    """A tiny model as the library writes it, its logits spread so that some spans pass a threshold and some do not."""
    import torch
    from gliner import GLiNER, GLiNERConfig

    encoder = tiny.checkpoint(folder / "encoder", "bert", max_tokens=changes.pop("max_tokens", 128))
    config = GLiNERConfig(
        **{
            "model_name": str(encoder),
            "max_width": 4,
            "hidden_size": 32,
            "dropout": 0.0,
            "max_len": 64,
            "num_rnn_layers": 1,
            **changes,
        }
    )
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GLiNER.from_config(config)
        for name, weight in model.model.named_parameters():
            if "token_rep_layer" not in name and weight.dim() > 1:
                weight.data *= threshold_spread
        model.save_pretrained(folder, safe_serialization=True)
    return folder


def library(folder: Path) -> Any:
    from gliner import GLiNER

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GLiNER.from_pretrained(str(folder), local_files_only=True)


class GlinerContract(ExtractContract):
    changes: ClassVar[Mapping[str, Any]] = {}
    threshold = 0.5

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        checkpoint(folder, **cls.changes)
        return SPEC

    @classmethod
    def payload(cls) -> Payload:
        texts = [" ".join(WORDS[:count]) for count in (1, 3, 8)]
        texts += [f"{WORDS[9]}-{WORDS[10]},  {texts[2]} ({WORDS[40]}).\n\tunknown_words é日本 {texts[1]}"]
        texts += [" ".join(WORDS[count : count + 50]) for count in (20, 60)]
        options = {"labels": LABELS} if cls.threshold == 0.5 else {"labels": LABELS, "threshold": cls.threshold}
        return Payload([{"text": text} for text in texts], options)

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        model = library(folder)
        found = [model.predict_entities(item["text"], LABELS, threshold=cls.threshold) for item in payload.items]
        assert any(found), "nothing is found, so nothing is compared"
        return [{"entities": entities} for entities in found]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [1]}

    @pytest.fixture(scope="class")
    @classmethod
    def theirs(cls, loaded: Alone) -> Any:
        assert loaded.folder is not None
        return library(loaded.folder)

    @pytest.mark.parametrize("flat", [True, False])
    @pytest.mark.parametrize("multi_label", [True, False])
    def test_rules_are_the_librarys(self, loaded: Alone, theirs: Any, flat: bool, multi_label: bool) -> None:
        payload = self.payload()
        least = min(self.threshold, 0.3)
        options = {"labels": LABELS, "threshold": least, "flat": flat, "multi_label": multi_label}

        found = plain(loaded.run(Payload(payload.items, options)))

        rules = {"threshold": least, "flat_ner": flat, "multi_label": multi_label}
        expected = [{"entities": theirs.predict_entities(item["text"], LABELS, **rules)} for item in payload.items]
        assert any(result["entities"] for result in expected)
        assert_same(found, expected, 1e-4)

    def test_calls_with_other_labels_share_a_forward(self, loaded: Alone) -> None:
        """S012: and each is answered with its own."""
        text = self.payload().items[4]
        asked = [["person"], LABELS, ["x", "y", "z", "person"]]
        payloads = [Payload([text], {"labels": labels, "threshold": self.threshold}) for labels in asked]
        parts = [part for payload in payloads for found in loaded.preparer.prepare(payload) for part in parts_of(found)]

        together = loaded.forward(parts)

        for payload, part, output in zip(payloads, parts, together, strict=True):
            ours = loaded.preparer.finish([output], [part], payload.options)
            assert {one["label"] for one in ours["entities"]} <= set(payload.options["labels"])
            assert_same([ours], plain(loaded.run(payload)), 1e-4)


class TestSpans(GlinerContract):
    pass


class TestTokens(GlinerContract):
    changes: ClassVar[Mapping[str, Any]] = {"span_mode": "token_level"}
    threshold = 0.1


class TestTokensThatBecomeSpans(GlinerContract):
    changes: ClassVar[Mapping[str, Any]] = {"span_mode": "token_level", "represent_spans": True}
    threshold = 0.1


class TestBiEncoder(GlinerContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        checkpoint(folder, labels_encoder=str(tiny.checkpoint(folder / "labels", "bert")))
        return SPEC
