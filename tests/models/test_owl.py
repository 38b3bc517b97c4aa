"""OWLv2 with random weights, against transformers' processor and post-processing."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from protocol.errors import InvalidInput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract, assert_same, plain
from tests.models.test_detector import image, png
from workers.families.alone import Alone
from workers.layers import pixels, squared

WORDS = ["!", "[UNK]", "a", "red", "boat", "cat", "remote", "control", "<start>", "<end>"]
LABELS = ["a cat", "Red boat", "remote control"]
SIDE, PATCHES, LONGEST_LABEL = 64, 16, 8
HEAD_SHARE = 0.1
SIZES = [(20, 20), (30, 24), (24, 40), (50, 31), (70, 10)]


def tokenizer() -> Any:
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    start, end = WORDS.index("<start>"), WORDS.index("<end>")
    made.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", start), ("<end>", end)]
    )
    special = {"bos_token": "<start>", "eos_token": "<end>", "pad_token": "!", "unk_token": "[UNK]"}
    return tiny.library.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=LONGEST_LABEL, **special)


def write(folder: Path) -> None:
    torch.manual_seed(0)
    t = tiny.library
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    text = {**tower, "vocab_size": len(WORDS), "max_position_embeddings": LONGEST_LABEL, "pad_token_id": 0}
    vision = {**tower, "image_size": SIDE, "patch_size": 16}
    made = t.Owlv2ForObjectDetection(t.Owlv2Config(text_config=text, vision_config=vision, projection_dim=32))
    for name, weights in made.named_parameters():  # chance makes these so large that every sigmoid would be 0 or 1
        weights.data *= HEAD_SHARE if "_head" in name else 1
    made.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    t.Owlv2ImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)


class TestOwl(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        write(folder)
        return ModelSpec("org/owl", "owl", ("extract",), inputs=("image",))

    @classmethod
    def payload(cls) -> Payload:
        return Payload([image(size) for size in SIZES], {"labels": LABELS, "threshold": 0.3})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        t = tiny.library
        model = t.Owlv2ForObjectDetection.from_pretrained(folder).eval()
        processor = t.Owlv2Processor(
            t.Owlv2ImageProcessorPil.from_pretrained(folder), t.PreTrainedTokenizerFast.from_pretrained(folder)
        )
        return [_reference(model, processor, item["images"][0]["data"], payload.options) for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": png((30, 30))[:300]}]}

    def test_larger_items_cost_more(self, loaded: Alone) -> None:
        """All images become one size; what costs more is more labels."""
        few = loaded.preparer.prepare(Payload([image((20, 20))], {"labels": LABELS[:1]}))
        many = loaded.preparer.prepare(Payload([image((70, 10))], {"labels": LABELS}))
        [[one]], [[other]] = few, many  # type: ignore[misc]  # neither is an error
        assert one.cost == PATCHES + LONGEST_LABEL
        assert other.cost == PATCHES + 3 * LONGEST_LABEL

    def test_calls_with_other_labels_share_a_forward(self, loaded: Alone, folder: Path) -> None:
        calls = [
            Payload([image(size)], {"labels": labels, "threshold": 0.3})
            for size, labels in zip(SIZES, [LABELS, LABELS[:1], LABELS[1:], ["cat"], LABELS[::-1]], strict=True)
        ]
        parts = [loaded.preparer.prepare(call)[0][0] for call in calls]  # type: ignore[index]  # none is an error
        assert {part.key for part in parts} == {None}

        outputs = loaded.forward(parts)

        ours = [
            loaded.preparer.finish([output], [part], call.options)
            for output, part, call in zip(outputs, parts, calls, strict=True)
        ]
        theirs = [self.reference(folder, call)[0] for call in calls]
        assert sum(len(one["objects"]) for one in theirs) > len(calls)
        assert_same(plain(ours), theirs, self.tolerance)

    @pytest.mark.parametrize(("threshold", "count"), [(0.0, PATCHES), (1.0, 0)])
    def test_what_is_below_the_threshold_is_left_out(self, loaded: Alone, threshold: float, count: int) -> None:
        [result] = loaded.run(Payload([image(SIZES[0])], {"labels": LABELS, "threshold": threshold}))
        assert len(result["objects"]) == count

    def test_different_labels_are_found(self, expected: list[Mapping[str, Any]]) -> None:
        assert len({one["label"] for result in expected for one in result["objects"]}) > 1

    def test_what_was_read_is_counted(self, loaded: Alone) -> None:
        assert all(result["images"] == 1 for result in loaded.run(self.payload()))

    @pytest.mark.parametrize("labels", [None, ["cat " * LONGEST_LABEL]])
    def test_labels_that_it_cannot_look_for_are_refused(self, loaded: Alone, labels: list[str] | None) -> None:
        with pytest.raises(InvalidInput) as refused:
            loaded.preparer.prepare(Payload([image((20, 20))], {"labels": labels} if labels else {}))
        assert refused.value.param == "options.labels"


def _reference(model: Any, processor: Any, data: bytes, options: Mapping[str, Any]) -> Mapping[str, Any]:
    picture = Image.open(io.BytesIO(data))
    inputs = processor(images=picture, text=[options["labels"]], return_tensors="pt")
    with torch.inference_mode():
        outputs = model(**inputs)
    [found] = processor.post_process_grounded_object_detection(
        outputs,
        threshold=options["threshold"],
        target_sizes=[(picture.height, picture.width)],
        text_labels=[options["labels"]],
    )
    objects = [
        {"label": label, "score": float(score), "bbox": box.tolist()}
        for label, score, box in zip(found["text_labels"], found["scores"], found["boxes"], strict=True)
    ]
    return {"objects": objects}


@pytest.mark.parametrize("size", [*SIZES, (96, 96), (300, 40), (1500, 900)])
def test_squares_are_the_librarys(tmp_path: Path, size: tuple[int, int]) -> None:
    processor = tiny.library.Owlv2ImageProcessorPil(size={"height": 96, "width": 96})
    processor.save_pretrained(tmp_path)
    picture = Image.open(io.BytesIO(png(size)))

    ours = pixels.read("org/owl", tmp_path).apply(picture)

    theirs = processor(picture, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_long_strip_is_shrunk_before_it_is_squared() -> None:
    strip = Image.new("RGB", (squared.LONGEST * 4, 200), "white")
    values = squared.resize(strip, (64, 64), 1 / 255)
    assert values.shape == (64, 64, 3)
    assert values[0].min() > 0.5  # the strip is the upper 50 rows of 4096, blurred with the black below
    assert values[4:].max() < 0.1
