"""Grounding DINO with random weights, against transformers' processor and post-processing."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from bench import checkpoints
from bench.checkpoints import QUERIES
from protocol.errors import InvalidInput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract
from workers.families.alone import Alone

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", "a", "red", "boat", "cat", "remote", "control"]
LABELS = ["a cat", "Red boat", "remote control"]
THRESHOLD = 0.3
SIZES = [(20, 20), (24, 20), (20, 26), (30, 22), (34, 22)]


def png(size: tuple[int, int]) -> bytes:
    values = np.random.default_rng(size[0] * 100 + size[1]).integers(0, 255, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def image(size: tuple[int, int]) -> dict[str, Any]:
    return {"images": [{"data": png(size)}]}


def tokenizer() -> Any:
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return tiny.library.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=256, **special)


class TestGroundingDino(ExtractContract):
    tolerance = 1e-4

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        checkpoints.grounding_dino(folder, tokenizer())
        return ModelSpec("org/dino", "detector", ("extract",), inputs=("image",))

    @classmethod
    def payload(cls) -> Payload:
        return Payload([image(size) for size in SIZES], {"labels": LABELS, "threshold": THRESHOLD})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        t = tiny.library
        # Queries are chosen by rank; with random weights the last digit decides it, so attention must be the same
        model = t.GroundingDinoForObjectDetection.from_pretrained(folder, attn_implementation="eager").eval()
        processor = t.GroundingDinoProcessor(
            t.GroundingDinoImageProcessorPil.from_pretrained(folder), t.PreTrainedTokenizerFast.from_pretrained(folder)
        )
        return [_reference(model, processor, item["images"][0]["data"]) for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": png((30, 30))[:300]}]}

    @pytest.mark.parametrize(("threshold", "count"), [(0.0, QUERIES), (1.0, 0)])
    def test_what_is_below_the_threshold_is_left_out(self, loaded: Alone, threshold: float, count: int) -> None:
        options = {"labels": LABELS, "threshold": threshold}
        [result] = loaded.run(Payload([image(SIZES[0])], options))
        assert len(result["objects"]) == count

    def test_labels_come_back_as_they_were_asked_for(self, loaded: Alone) -> None:
        found = {one["label"] for result in loaded.run(self.payload()) for one in result["objects"]}
        assert found <= set(LABELS)

    def test_what_was_read_is_counted(self, loaded: Alone) -> None:
        assert all(result["images"] == 1 for result in loaded.run(self.payload()))

    @pytest.mark.parametrize("labels", [None, ["U.S. flag"], ["cat"] * 200])
    def test_labels_that_it_cannot_look_for_are_refused(self, loaded: Alone, labels: list[str] | None) -> None:
        with pytest.raises(InvalidInput) as refused:
            loaded.preparer.prepare(Payload([image((20, 20))], {"labels": labels} if labels else {}))
        assert refused.value.param == "options.labels"


def _reference(model: Any, processor: Any, data: bytes) -> Mapping[str, Any]:
    picture = Image.open(io.BytesIO(data))
    inputs = processor(images=picture, text=[LABELS], return_tensors="pt")
    with torch.inference_mode():
        outputs = model(**inputs)
    size = [(picture.height, picture.width)]
    [found] = processor.post_process_grounded_object_detection(
        outputs, inputs["input_ids"], threshold=THRESHOLD, target_sizes=size
    )
    shares = outputs.logits[0].sigmoid()
    kept = shares[shares.max(-1)[0] > THRESHOLD]
    # [CLS] a cat . red boat . remote control . [SEP]
    best = [int(torch.stack([row[1:3].max(), row[4:6].max(), row[7:9].max()]).argmax()) for row in kept]
    objects = [
        {"label": LABELS[label], "score": float(score), "bbox": box.tolist()}
        for label, score, box in zip(best, found["scores"], found["boxes"], strict=True)
    ]
    return {"objects": objects}
