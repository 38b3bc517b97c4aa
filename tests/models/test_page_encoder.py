"""ColPali and ColQwen2 with random weights, against transformers' own processors and models."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import AddedToken

from protocol.errors import InvalidInput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import Contract
from tests.models.test_image_encoder import image, opened
from workers.families.alone import Alone
from workers.layers import patched

library = tiny.library
WORDS = tiny.words()
QUESTIONS = [" ".join(WORDS[start : start + count]) for start, count in enumerate((1, 2, 5, 12))]
SIDES = ((20, 16), (28, 28), (45, 30), (30, 60))


def spec(**fields: Any) -> ModelSpec:
    outputs, inputs = ("multivector",), ("text", "image")
    return ModelSpec("org/pages", "page_encoder", ("encode", "score"), inputs=inputs, outputs=outputs, **fields)


def words(*special: str) -> Any:
    """One token per word; whatever the processor writes around questions and images is known."""
    made = tiny.word_tokenizer()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    made.post_processor = None
    return library.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=200, padding_side="right", **named)


def colpali(folder: Path) -> None:
    tokens = words("<image>")
    tokens.image_token, tokens.image_token_id = "<image>", tokens.convert_tokens_to_ids("<image>")
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    text = {**small, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": len(tokens) + 8, "pad_token_id": 0}
    vision = {**small, "image_size": 28, "patch_size": 14, "num_image_tokens": 4, "vision_use_head": False}
    both = library.PaliGemmaConfig(
        text_config={"model_type": "gemma", **text},
        vision_config={"model_type": "siglip_vision_model", **vision, "projection_dim": 32},
        image_token_index=tokens.image_token_id,
        projection_dim=32,
    )
    torch.manual_seed(0)
    library.ColPaliForRetrieval(library.ColPaliConfig(vlm_config=both, embedding_dim=16)).save_pretrained(folder)
    images = library.SiglipImageProcessorPil(size={"height": 28, "width": 28})
    images.image_seq_length = 4
    library.ColPaliProcessor(images, tokens).save_pretrained(folder)


def colqwen2(folder: Path) -> None:
    marks = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
    tokens = words(*marks)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    ids = {
        name: tokens.convert_tokens_to_ids(mark) for name, mark in zip(("image", "start", "end"), marks, strict=False)
    }
    rope = {"rope_type": "default", "type": "mrope", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0}
    text = {**small, "num_key_value_heads": 2, "vocab_size": len(tokens), "pad_token_id": 0, "rope_parameters": rope}
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 14}
    both = library.Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image"],
        vision_start_token_id=ids["start"],
        vision_end_token_id=ids["end"],
        video_token_id=len(tokens) - 1,
    )
    torch.manual_seed(0)
    library.ColQwen2ForRetrieval(library.ColQwen2Config(vlm_config=both, embedding_dim=16)).save_pretrained(folder)
    images = library.Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=84 * 56)
    library.ColQwen2Processor(images, tokens).save_pretrained(folder)


def theirs(folder: Path, kind: str, item: Mapping[str, Any]) -> torch.Tensor:
    """The vectors of one item, by the book."""
    tokens = library.PreTrainedTokenizerFast.from_pretrained(folder)
    if kind == "ColPali":
        tokens.image_token, tokens.image_token_id = "<image>", tokens.convert_tokens_to_ids("<image>")
        images = library.SiglipImageProcessorPil.from_pretrained(folder)
        images.image_seq_length = 4
    else:
        images = library.Qwen2VLImageProcessorPil.from_pretrained(folder)
    processor = getattr(library, f"{kind}Processor")(images, tokens)
    model = getattr(library, f"{kind}ForRetrieval").from_pretrained(folder, attn_implementation="eager").eval()
    if "images" in item:
        asked = processor.process_images([opened(item).convert("RGB")])
    else:
        asked = processor.process_queries([item["text"]])
    asked.pop("labels", None)
    with torch.no_grad():
        found: torch.Tensor = model(**asked).embeddings[0]
    return found


def as_map(rows: torch.Tensor) -> dict[str, Any]:
    values = rows.numpy()
    return {"multivector": {"token_dims": 16, "num_tokens": len(values), "dtype": "float32", "values": values}}


class TestColPali(Contract):
    kind = "ColPali"

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        {"ColPali": colpali, "ColQwen2": colqwen2}[cls.kind](folder)
        return spec()

    @classmethod
    def payload(cls) -> Payload:
        items = [{"text": question} for question in QUESTIONS] + [image(sides) for sides in SIDES]
        return Payload(sorted(items, key=cls.size), {"output_types": ["multivector"]})

    @classmethod
    def size(cls, item: Mapping[str, Any]) -> int:
        """A question's tokens by its words; an image's, the prompt's included."""
        return len(item["text"].split()) + 12 if "text" in item else 9

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        return [as_map(theirs(folder, cls.kind, item)) for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": b"\x89PNG\r\n\x1a\n broken", "format": "png"}]}

    def test_pages_are_ranked_by_a_question(self, loaded: Alone) -> None:
        pages, query = [image(sides) for sides in SIDES], {"text": QUESTIONS[2]}
        scores = [result["score"] for result in loaded.run(Payload(pages, {}, query))]
        assert loaded.folder is not None
        question = theirs(loaded.folder, self.kind, query)
        wanted = [float((question @ theirs(loaded.folder, self.kind, page).T).amax(1).sum()) for page in pages]
        assert scores == pytest.approx(wanted, abs=1e-3)

    def test_pages_can_be_folded_to_one_vector(self, loaded: Alone) -> None:
        options = {"output_types": ["dense"], "muvera": {"dims": 128}}
        found = loaded.run(Payload([image(SIDES[0]), {"text": "a"}], options))
        assert [result["dense"]["dims"] for result in found] == [128, 128]


class TestColQwen2(TestColPali):
    kind = "ColQwen2"

    @classmethod
    def size(cls, item: Mapping[str, Any]) -> int:
        if "text" in item:
            return len(item["text"].split()) + 12
        still = (np.zeros(3), np.ones(3))
        recipe = patched.PatchRecipe(28 * 28, 84 * 56, 14, 2, 2, Image.Resampling.BICUBIC, 1.0, *still)
        return recipe.tokens(recipe.apply(opened(item).convert("RGB"))[1]) + 9


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tmp_path_factory.mktemp("colqwen2")
    colqwen2(folder)
    return Alone(spec(), folder)


@pytest.mark.parametrize("sides", [(10, 10), (3000, 40), (40, 3000), (500, 501), (57, 83), (1000, 1000)])
def test_patches_are_those_of_the_librarys_processor(pages: Alone, sides: tuple[int, int]) -> None:
    item = image(sides)
    [found] = pages.preparer.prepare(Payload([item], {"output_types": ["multivector"]}))
    assert isinstance(found, list)
    [part] = found
    processor = library.Qwen2VLImageProcessorPil.from_pretrained(pages.folder)
    wanted = processor(opened(item).convert("RGB"), return_tensors="np")
    assert [1, *part.inputs["grid"]] == wanted["image_grid_thw"][0].tolist()
    assert np.abs(part.inputs["pixels"] - wanted["pixel_values"]).max() < 1e-5


def test_a_question_that_spells_an_image_is_refused(pages: Alone) -> None:
    [result] = pages.run(Payload([{"text": "see <|image_pad|> here"}], {"output_types": ["multivector"]}))
    assert result["error"]["param"] == "items[0].text"


def test_a_question_that_is_too_long_keeps_its_end(pages: Alone) -> None:
    items = [{"text": " ".join(WORDS[:250])}]
    [result] = pages.run(Payload(items, {"output_types": ["multivector"]}))
    assert result["truncated"] and result["multivector"]["num_tokens"] == 200
    [refused] = pages.run(Payload(items, {"output_types": ["multivector"], "overflow": "error"}))
    assert refused["error"]["code"] == "INPUT_TOO_LONG"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"output_types": ["dense"]}, "options.output_types"),
        ({"output_types": ["multivector"], "chunk": {}}, "options.chunk"),
        ({"output_types": ["multivector"], "prompt": "x"}, "options.prompt"),
        ({"output_types": ["multivector"], "normalize": False}, "options.normalize"),
    ],
)
def test_what_it_does_not_read_is_refused(pages: Alone, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pages.run(Payload([{"text": "a"}], options))
    assert caught.value.param == param


def test_an_item_of_both_or_neither_is_refused(pages: Alone) -> None:
    both = {**image((40, 40)), "text": "a"}
    found = pages.run(Payload([both, {"token_ids": [1]}, {"text": "a"}], {"output_types": ["multivector"]}))
    assert [result.get("error", {}).get("param") for result in found] == ["items[0].images", "items[1].text", None]


def test_queries_that_are_images_of_one_size_are_not_taken_for_each_other(pages: Alone) -> None:
    """Their tokens are the same; calls of several callers share a forward."""
    shown = [opened(image((56, 56))).convert("RGB").rotate(turn) for turn in (0, 90)]
    queries = []
    for picture in shown:
        stored = io.BytesIO()
        picture.save(stored, "PNG")
        queries.append({"images": [{"data": stored.getvalue()}]})
    found = [pages.preparer.prepare(Payload([{"text": "a"}, image((45, 30))], {}, query)) for query in queries]
    parts = [part for call in found for [part] in call]  # type: ignore[misc]  # none is an error
    apart = [output["score"] for part in parts for output in pages.forward([part])]
    together = [output["score"] for output in pages.forward(parts)]
    assert together == pytest.approx(apart, abs=1e-4)
    assert abs(apart[0] - apart[2]) > 1e-2


@pytest.mark.parametrize(
    ("query", "param"),
    [({"images": [{"data": b"no image"}]}, "query.images[0]"), ({"text": "see <|image_pad|>"}, "query.text")],
)
def test_what_is_wrong_with_a_query_is_named(pages: Alone, query: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pages.run(Payload([{"text": "a"}], {}, query))
    assert caught.value.param == param


def test_an_image_is_read_upright(pages: Alone) -> None:
    stored = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = opened(image((60, 90))).convert("RGB")
    upright.transpose(Image.Transpose.ROTATE_90).save(stored, "PNG", exif=exif)
    items = [image((60, 90)), {"images": [{"data": stored.getvalue()}]}]
    one, other = pages.run(Payload(items, {"output_types": ["multivector"]}))
    assert np.allclose(one["multivector"]["values"], other["multivector"]["values"], atol=1e-5)
