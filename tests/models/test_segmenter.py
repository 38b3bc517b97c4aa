"""SAM 3 with random weights, against transformers' processor and post-processing, label by label."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.errors import InvalidInput, ModelLoadFailed
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract
from tests.models.test_detector import image, png
from tests.models.test_image_encoder import opened
from tests.models.test_owl import WORDS, tokenizer
from workers.families import segmenter
from workers.families.alone import Alone

SIDE = 56
LABELS = ["a cat", "Red boat", "remote control", "cat"]
SIZES = [(20, 20), (30, 24), (24, 40), (50, 31), (70, 10)]
LEAST = 0.25


def write(folder: Path) -> None:
    t = tiny.library
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    backbone = {**tower, "image_size": SIDE, "patch_size": 14, "window_size": 2, "global_attn_indexes": [1]}
    vision = {
        "backbone_config": {"model_type": "sam3_vit_model", **backbone, "pretrain_image_size": SIDE},
        "fpn_hidden_size": 32,
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    }
    text = {**tower, "vocab_size": len(WORDS), "max_position_embeddings": 32, "projection_dim": 32, "pad_token_id": 0}
    part = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = t.Sam3Config(
        vision_config=vision,
        text_config={**text, "bos_token_id": WORDS.index("<start>"), "eos_token_id": WORDS.index("<end>")},
        geometry_encoder_config={**part, "num_layers": 1},
        detr_encoder_config={**part, "num_layers": 2},
        detr_decoder_config={**part, "num_layers": 2, "num_queries": 6},
        mask_decoder_config={"hidden_size": 32, "num_attention_heads": 4},
    )
    torch.manual_seed(0)
    t.Sam3Model(config).save_pretrained(folder)
    words = tokenizer()
    words.model_max_length = 32
    words.save_pretrained(folder)
    t.Sam3ImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)


class TestSegmenter(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        write(folder)
        return ModelSpec("org/segmenter", "segmenter", ("extract",), inputs=("image",))

    @classmethod
    def payload(cls) -> Payload:
        return Payload([image(size) for size in SIZES], {"labels": LABELS, "threshold": LEAST})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        t = tiny.library
        model = t.Sam3Model.from_pretrained(folder, attn_implementation="eager").eval()
        words, processor = tokenizer(), t.Sam3ImageProcessor.from_pretrained(folder)
        return [{"objects": _objects(model, words, processor, item)} for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": png((30, 30))[:300]}]}

    def test_larger_items_cost_more(self, loaded: Alone) -> None:
        """All images become one size; what costs more is more labels."""
        payload = self.payload()
        costs = [
            loaded.preparer.prepare(Payload(payload.items[:1], {"labels": LABELS[:count]}))[0][0].cost  # type: ignore[index]
            for count in (1, 2, 4)
        ]
        assert costs == [16 * 2, 16 * 3, 16 * 5]

    def test_objects_are_found(self, expected: list[Mapping[str, Any]]) -> None:
        counts = [len(result["objects"]) for result in expected]
        assert all(0 < count < len(LABELS) * 6 for count in counts)


def _objects(model: Any, words: Any, processor: Any, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    picture = opened(item).convert("RGB")
    pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
    objects = []
    for label in LABELS:
        asked = words(label, padding="max_length", max_length=32, return_tensors="pt")
        with torch.no_grad():
            found = model(pixels, input_ids=asked["input_ids"], attention_mask=asked["attention_mask"])
        size = [(picture.height, picture.width)]
        [kept] = processor.post_process_object_detection(found, threshold=LEAST, target_sizes=size)
        for score, box in zip(kept["scores"].tolist(), kept["boxes"].tolist(), strict=True):
            objects.append({"label": label, "score": score, "bbox": box})
    return objects


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tmp_path_factory.mktemp("segmenter")
    write(folder)
    return Alone(ModelSpec("org/segmenter", "segmenter", ("extract",), inputs=("image",)), folder)


def test_many_labels_are_looked_for_in_groups(loaded: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = Payload([image(SIZES[3])], {"labels": LABELS, "threshold": 0.0})
    whole = loaded.run(payload)[0]["objects"]
    monkeypatch.setattr(segmenter, "_AT_ONCE", 3)
    again = loaded.run(payload)[0]["objects"]
    assert [one["label"] for one in again] == [one["label"] for one in whole]
    assert np.allclose([one["score"] for one in again], [one["score"] for one in whole], atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"labels": ["cat " * 40]}, {"labels": ["cat"], "task": "x"}])
def test_what_it_cannot_look_for_is_refused(loaded: Alone, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        loaded.run(Payload([image(SIZES[0])], options))


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    tiny.bare("bert", tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelLoadFailed, match="not 'sam3'"):
        Alone(ModelSpec("org/segmenter", "segmenter", ("extract",)), tmp_path)
