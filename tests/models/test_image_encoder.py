"""CLIP and SigLIP with random weights, against transformers itself."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import processors

from protocol.errors import InvalidInput, ModelLoadFailed
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import Contract, assert_same
from workers.families.alone import Alone
from workers.layers import pixels

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LIMIT = 16
SIZES = [(40, 40), (64, 48), (30, 90)]


def png(size: tuple[int, int], mode: str = "RGB") -> bytes:
    pixels_of = np.random.default_rng(size[0]).integers(0, 255, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels_of).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def image(size: tuple[int, int]) -> dict[str, Any]:
    return {"images": [{"data": png(size), "format": "png"}]}


def opened(item: Mapping[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(item["images"][0]["data"]))


def clip(folder: Path) -> None:
    torch.manual_seed(0)
    t = tiny.library
    text = {**SHAPE, "vocab_size": tiny.VOCABULARY, "max_position_embeddings": LIMIT, "eos_token_id": 2}
    vision = {**SHAPE, "image_size": 32, "patch_size": 8}
    t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).save_pretrained(folder)
    words = tiny.word_tokenizer()
    last = tiny.VOCABULARY - 1  # CLIP finds the end of a text by its largest id
    words.post_processor = processors.TemplateProcessing(
        single=f"<s> $A {words.id_to_token(last)}",
        special_tokens=[("<s>", 1), (str(words.id_to_token(last)), last)],
    )
    t.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=LIMIT, pad_token="<pad>").save_pretrained(folder)
    t.CLIPImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)


def siglip(folder: Path) -> None:
    torch.manual_seed(0)
    t = tiny.library
    text = {**SHAPE, "vocab_size": tiny.VOCABULARY, "max_position_embeddings": LIMIT, "projection_size": 32}
    vision = {**SHAPE, "image_size": 48, "patch_size": 8}
    t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    words = tiny.word_tokenizer()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    t.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=LIMIT, pad_token="<pad>").save_pretrained(folder)
    t.SiglipImageProcessorPil(size={"height": 48, "width": 48}).save_pretrained(folder)


class TestClip(Contract):
    tolerance = 1e-4
    padding: bool | str = True
    processor = "CLIPImageProcessorPil"

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        clip(folder)
        load = {"normalize": True}
        return ModelSpec(
            "org/clip", "image_encoder", ("encode",), inputs=("text", "image"), outputs=("dense",), load=load
        )

    @classmethod
    def payload(cls) -> Payload:
        """Texts of which the last is cut, then images."""
        words = tiny.words()
        return Payload([*({"text": " ".join(words[:count])} for count in (1, 3, 8)), *map(image, SIZES)])

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        t = tiny.library
        model = t.AutoModel.from_pretrained(folder).eval()
        tokenizer = t.PreTrainedTokenizerFast.from_pretrained(folder)
        processor = getattr(t, cls.processor).from_pretrained(folder)
        rows = []
        with torch.inference_mode():
            for item in payload.items:
                if "text" in item:
                    ids = tokenizer(
                        item["text"], padding=cls.padding, truncation=True, max_length=LIMIT, return_tensors="pt"
                    )
                    found = model.get_text_features(input_ids=ids["input_ids"])
                else:
                    found = model.get_image_features(**processor(opened(item), return_tensors="pt"))
                row = found.pooler_output[0].numpy()
                rows.append(row / np.linalg.norm(row))
        return [{"dense": {"dims": len(row), "dtype": "float32", "values": row}} for row in rows]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": png((64, 64))[:200]}]}

    def test_pixels_are_those_of_the_librarys_processor(self, loaded: Alone) -> None:
        assert loaded.folder is not None
        theirs = getattr(tiny.library, self.processor).from_pretrained(loaded.folder)
        recipe = pixels.read("org/m", loaded.folder)
        for size in [*SIZES, (1, 3), (300, 7)]:
            picture = opened(image(size))
            assert np.abs(recipe.apply(picture) - theirs(picture)["pixel_values"][0]).max() < 1e-3

    def test_options_shape_vectors_of_texts_and_images(self, loaded: Alone) -> None:
        items = [{"text": tiny.words()[0]}, image(SIZES[0])]
        for result in loaded.run(Payload(items, {"dimensions": 8, "output_dtype": "int8"})):
            assert result["dense"]["dims"] == 8
            assert result["dense"]["values"].dtype == np.int8

    def test_what_was_read_is_counted(self, loaded: Alone) -> None:
        text, picture = loaded.run(Payload([{"text": "one"}, image(SIZES[0])]))
        assert text["tokens"] >= 2
        assert picture["images"] == 1

    def test_a_text_that_is_too_long_is_cut_or_refused(self, loaded: Alone) -> None:
        items = [{"text": " ".join(tiny.words()[:40])}]
        assert_same(
            loaded.run(Payload(items))[0]["dense"], self.reference(_folder(loaded), Payload(items))[0]["dense"], 1e-4
        )
        assert loaded.run(Payload(items, {"overflow": "error"}))[0]["error"]["code"] == "INPUT_TOO_LONG"

    @pytest.mark.parametrize("extra", [{"text": "and a text"}, {"images": [{"data": png((9, 9))}] * 2}])
    def test_an_item_is_one_text_or_one_image(self, loaded: Alone, extra: dict[str, Any]) -> None:
        [result] = loaded.run(Payload([{**image(SIZES[0]), **extra}]))
        assert result["error"]["code"] == "INVALID_INPUT"


class TestSiglip(TestClip):
    padding = "max_length"
    processor = "SiglipImageProcessorPil"

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        spec = super().make(folder.parent / "unused")
        siglip(folder)
        return ModelSpec(
            "org/siglip", "image_encoder", ("encode",), inputs=spec.inputs, outputs=("dense",), load=spec.load
        )


def _folder(loaded: Alone) -> Path:
    assert loaded.folder is not None
    return loaded.folder


def test_siglip_1_reads_lower_case_without_punctuation(tmp_path: Path) -> None:
    siglip(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tokenizer_class": "SiglipTokenizer"}))
    model = Alone(ModelSpec("org/siglip", "image_encoder", ("encode",), inputs=("text", "image")), tmp_path)
    word = tiny.words()[0]
    plain, loud = model.run(Payload([{"text": f"{word} {word}"}, {"text": f"{word.upper()}!  {word}."}]))
    assert_same(loud["dense"], plain["dense"], 0.0)


def test_a_processor_of_another_kind_is_refused(tmp_path: Path) -> None:
    clip(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "BlipImageProcessor"}')
    with pytest.raises(ModelLoadFailed, match="BlipImageProcessor"):
        pixels.read("org/m", tmp_path)


def test_sparse_vectors_are_refused(tmp_path: Path) -> None:
    clip(tmp_path)
    model = Alone(ModelSpec("org/clip", "image_encoder", ("encode",), inputs=("text", "image")), tmp_path)
    with pytest.raises(InvalidInput, match="dense vectors only"):
        model.preparer.prepare(Payload([{"text": "a"}], {"output_types": ["sparse"]}))
