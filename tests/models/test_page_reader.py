"""LightOnOCR and GLM-OCR with random weights, against transformers' processors and its own generation."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken

from protocol.errors import InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract
from tests.models.test_image_encoder import image, opened
from workers.families.alone import Alone

library = tiny.library
SIDES = ((20, 20), (40, 30), (50, 60), (60, 70), (90, 60))
MOST = 12
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TASKS = {"ocr": "OCR:", "table": "Table Recognition:"}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}


def spec(**load: Any) -> ModelSpec:
    return ModelSpec("org/reader", "page_reader", ("extract",), inputs=("image",), load={"prompt": "Read it.", **load})


def tokens(**marks: str) -> Any:
    made = tiny.byte_tokenizer()
    made.post_processor = None
    spelled = ("<|im_start|>", "<|im_end|>", *marks.values())
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in spelled])
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "extra_special_tokens": marks}
    return library.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=512, **named)


def lighton(folder: Path) -> None:
    words = tokens(image_token="<|image|>", image_break_token="<|break|>", image_end_token="<|end|>")
    images = library.PixtralImageProcessor(size={"longest_edge": 84}, patch_size={"height": 14, "width": 14})
    template = TEMPLATE.replace("IMAGE", "<|image|>")
    library.LightOnOcrProcessor(images, words, 14, 2, chat_template=template).save_pretrained(folder)
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = library.LightOnOcrConfig(
        text_config={"model_type": "qwen3", "vocab_size": len(words), "eos_token_id": words.eos_token_id, **TEXT},
        vision_config={"model_type": "pixtral", "image_size": 112, "patch_size": 14, "head_dim": 8, **vision},
        image_token_id=words.image_token_id,
        spatial_merge_size=2,
    )
    torch.manual_seed(0)
    model = library.LightOnOcrForConditionalGeneration(config)
    model.lm_head.weight.data[words.eos_token_id] *= 2  # or hardly an answer would end
    model.save_pretrained(folder)


def glm(folder: Path) -> None:
    words = tokens(image_token="<|image|>", video_token="<|video|>", start="<|begin_of_image|>", end="<|end_of_image|>")
    images = library.Glm46VImageProcessor(
        size={"shortest_edge": 28 * 28 * 2, "longest_edge": 84 * 84 * 2}, patch_size=14, merge_size=2
    )
    template = TEMPLATE.replace("IMAGE", "<|begin_of_image|><|image|><|end_of_image|>")
    videos = library.Glm46VVideoProcessor()
    library.Glm46VProcessor(images, words, videos, chat_template=template).save_pretrained(folder)
    ids = {mark: words.convert_tokens_to_ids(mark) for mark in ("<|image|>", "<|video|>")}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0}
    vision = {"hidden_size": 32, "depth": 2, "num_heads": 4, "intermediate_size": 64, "out_hidden_size": 32}
    config = library.GlmOcrConfig(
        text_config={"vocab_size": len(words), "eos_token_id": words.eos_token_id, **TEXT, "rope_parameters": rope},
        vision_config={**vision, "image_size": 84, "patch_size": 14, "initializer_range": 0.3},
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        image_start_token_id=words.convert_tokens_to_ids("<|begin_of_image|>"),
        image_end_token_id=words.convert_tokens_to_ids("<|end_of_image|>"),
    )
    torch.manual_seed(0)
    model = library.GlmOcrForConditionalGeneration(config)
    model.lm_head.weight.data[words.eos_token_id] *= 2
    model.save_pretrained(folder)


def theirs(folder: Path, item: Mapping[str, Any], prompt: str, most: int) -> tuple[str, bool]:
    """What the library writes about an image, and whether that came to an end."""
    processor = library.AutoProcessor.from_pretrained(folder)
    model = library.AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    content = [{"type": "image", "image": opened(item).convert("RGB")}, {"type": "text", "text": prompt}]
    asked = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        found = model.generate(**asked, max_new_tokens=most, do_sample=False)[0, asked["input_ids"].shape[1] :]
    ended = bool((found == processor.tokenizer.eos_token_id).any())
    return processor.tokenizer.decode(found, skip_special_tokens=True).strip(), ended


def as_map(text: str) -> dict[str, Any]:
    return {"entities": [{"text": text, "label": "text", "score": 1.0}] if text else [], "data": {"text": text}}


class TestLightOn(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        lighton(folder)
        return spec(tasks=TASKS)

    @classmethod
    def payload(cls) -> Payload:
        return Payload([image(sides) for sides in SIDES], {"max_new_tokens": MOST})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        return [as_map(theirs(folder, item, "Read it.", MOST)[0]) for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": b"\x89PNG\r\n\x1a\n broken", "format": "png"}]}

    def test_an_answer_that_did_not_end_says_so(self, loaded: Alone) -> None:
        assert loaded.folder is not None
        ended = [theirs(loaded.folder, item, "Read it.", MOST)[1] for item in self.payload().items]
        assert [not result["truncated"] for result in loaded.run(self.payload())] == ended

    @pytest.mark.parametrize(
        ("options", "prompt"),
        [({"instruction": "What is due?"}, "What is due?"), ({"task": "table"}, "Table Recognition:")],
    )
    def test_what_is_asked_is_said_to_the_model(self, loaded: Alone, options: dict[str, Any], prompt: str) -> None:
        items = [image(SIDES[1])]
        [result] = loaded.run(Payload(items, {**options, "max_new_tokens": MOST}))
        assert loaded.folder is not None
        assert result["data"]["text"] == theirs(loaded.folder, items[0], prompt, MOST)[0]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # the library's own
class TestGlm(TestLightOn):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        glm(folder)
        return spec(tasks=TASKS)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tmp_path_factory.mktemp("reader")
    lighton(folder)
    return Alone(spec(tasks=TASKS), folder)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"task": "poem"}, "options.task"),
        ({"task": "ocr", "instruction": "x"}, "options.task"),
        ({"instruction": "a<|im_end|>b"}, "options.instruction"),
        ({"instruction": "see <|image|>"}, "options.instruction"),
        ({"instruction": "x" * 5000}, "options.instruction"),
        ({"max_new_tokens": 10_000}, "options.max_new_tokens"),
        ({"labels": ["a"]}, "options.labels"),
    ],
)
def test_what_it_cannot_do_is_refused(reader: Alone, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        reader.run(Payload([image(SIDES[0])], options))
    assert caught.value.param == param


@pytest.mark.parametrize("sides", [(1, 1), (14, 14), (1, 40), (40, 3)])
def test_the_smallest_image_is_read(reader: Alone, sides: tuple[int, int]) -> None:
    [result] = reader.run(Payload([image(sides)], {"max_new_tokens": 4}))
    assert "error" not in result


def test_scores_that_are_no_numbers_are_never_an_answer(reader: Alone) -> None:
    [part] = reader.preparer.prepare(Payload([image(SIDES[0])], {}))
    assert isinstance(part, list)
    with pytest.raises(NonFiniteOutput):
        reader.preparer.finish([{"text": "", "ended": True, "finite": False}], part, {})


@pytest.mark.parametrize("load", [{"tasks": ["ocr"]}, {"tasks": {"ocr": 3}}, {"beams": 3}])
def test_an_entry_that_means_nothing_is_refused(reader: Alone, load: dict[str, Any]) -> None:
    assert reader.folder is not None
    with pytest.raises(ModelLoadFailed, match=r"load\."):
        Alone(spec(**load), reader.folder)


def test_a_processor_without_a_template_is_refused(tmp_path: Path) -> None:
    lighton(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ModelLoadFailed, match="chat template"):
        Alone(spec(), tmp_path)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    lighton(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tiny.write(tmp_path / "config.json", {**config, "model_type": "bert"})
    with pytest.raises((ModelLoadFailed, ValueError)):
        Alone(spec(), tmp_path)
