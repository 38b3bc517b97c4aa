"""Florence-2 with random weights, against transformers' processor and its own generation."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from catalog import loader
from catalog.snapshot import Model
from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec, Source
from tests.models import tiny
from tests.models.contract import ExtractContract, assert_same, plain
from tests.models.test_detector import image, png
from workers.families import florence
from workers.families.alone import Alone
from workers.layers import regions

SIDE, PLACES = 64, 5  # the image's side in pixels, and how many tokens stand for it
POSITIONS = 96  # of encoder and decoder
MOST = 40  # tokens of an answer
SIZES = [(20, 20), (30, 24), (24, 40), (50, 31), (70, 10)]
TEXTS = ["a photo of a cat", "what is the text in the image", "locate the objects with category name in the image"] * 4
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PLACE_TOKENS = [f"<loc_{index}>" for index in range(1000)]
MARKS = ["<od>", "</od>", "<ocr>", "</ocr>", "<poly>", "</poly>", "<sep>", "<ground>"]
BANNED = ["it", "the image"]
KINDS = (
    "ocr",
    "pure_text",
    "polygons",
    "bboxes",
    "description_with_bboxes",
    "description_with_polygons",
    "description_with_bboxes_or_polygons",
)
ASKED = {name: ("a red boat" if task.reads_input else None) for name, task in regions.TASKS.items()}
REGION = "<loc_52><loc_332><loc_932><loc_774>"
GENERATION = {"num_beams": 3, "early_stopping": True, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0}


def tokenizer() -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=SPECIAL)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    more = {"model_max_length": 1024, "extra_special_tokens": {"image_token": "<image>"}}
    ready = tiny.library.PreTrainedTokenizerFast(tokenizer_object=made, **names, **more)
    ready.add_tokens([*PLACE_TOKENS, *MARKS], special_tokens=True)
    return ready


def processor() -> Any:
    t = tiny.library
    images = t.CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_center_crop=False)
    images.image_seq_length = PLACES
    config = {**{kind: {} for kind in KINDS}, "phrase_grounding": {"banned_grounding_tokens": BANNED}}
    return t.Florence2Processor(images, tokenizer(), post_processor_config=config)


def write(folder: Path) -> None:
    torch.manual_seed(0)
    t = tiny.library
    made = processor()
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": POSITIONS}
    text = {"model_type": "bart", "vocab_size": len(made.tokenizer), **heads, **sizes, "init_std": 0.2}
    steps = {"embed_dim": [8, 16, 16, 32], "num_heads": [1, 2, 2, 4], "num_groups": [1, 2, 2, 4]}
    vision = {**steps, "depths": [1, 1, 1, 1], "window_size": 4, "projection_dim": 32, "initializer_range": 0.2}
    config = t.Florence2Config(text_config=text, vision_config=vision, image_token_id=made.tokenizer.image_token_id)
    model = t.Florence2ForConditionalGeneration(config)
    model.lm_head.weight.data[2] *= 2  # or hardly an answer would end
    model.generation_config.update(**GENERATION, forced_eos_token_id=2)
    model.save_pretrained(folder)
    made.save_pretrained(folder)


def payload(name: str = "<OD>", sizes: list[tuple[int, int]] = SIZES, **options: Any) -> Payload:
    said = {"task": name, "max_new_tokens": MOST, **options}
    if ASKED[name] is not None and "labels" not in options:
        said.setdefault("instruction", ASKED[name])
    return Payload([image(size) for size in sizes], said)


class TestFlorence(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        write(folder)
        return ModelSpec("org/florence", "florence", ("extract",), inputs=("image",))

    @classmethod
    def payload(cls) -> Payload:
        return payload()

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        return Library(folder).run(payload)

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": png((30, 30))[:300]}]}

    def test_larger_items_cost_more(self, loaded: Alone) -> None:
        """All images become one size; what costs more is a longer prompt and a longer answer."""
        calls = [payload(max_new_tokens=8), payload(max_new_tokens=9), payload("<OCR_WITH_REGION>", max_new_tokens=9)]
        parts = [loaded.preparer.prepare(call)[0][0] for call in calls]  # type: ignore[index]  # none is an error
        assert [part.cost for part in parts] == [
            PLACES + part.tokens + most for part, most in zip(parts, (8, 9, 9), strict=True)
        ]
        assert parts[0].cost < parts[1].cost < parts[2].cost

    @pytest.fixture(scope="class")
    @classmethod
    def library(cls, loaded: Alone, folder: Path) -> "Library":
        return Library(folder)

    @pytest.mark.parametrize("name", regions.TASKS)
    def test_every_task_is_answered_as_by_its_library(self, loaded: Alone, library: "Library", name: str) -> None:
        call = payload(name)
        assert_same(plain(loaded.run(call)), library.run(call), self.tolerance)

    def test_calls_of_other_tasks_share_a_forward(self, loaded: Alone, library: "Library") -> None:
        calls = [payload(name, SIZES[:1]) for name in regions.TASKS]
        parts = [loaded.preparer.prepare(call)[0][0] for call in calls]  # type: ignore[index]  # none is an error
        assert {part.key for part in parts} == {MOST}
        assert len({len(part.inputs["ids"]) for part in parts}) > 3

        outputs = loaded.forward(parts)

        ours = [
            loaded.preparer.finish([output], [part], call.options)
            for output, part, call in zip(outputs, parts, calls, strict=True)
        ]
        assert_same(plain(ours), [library.run(call)[0] for call in calls], self.tolerance)

    def test_the_images_are_told_apart(self, expected: list[Mapping[str, Any]]) -> None:
        assert len({json.dumps(one) for one in expected}) == len(expected)

    @pytest.mark.parametrize("name", ["<OD>", "<REGION_PROPOSAL>", "<CAPTION_TO_PHRASE_GROUNDING>"])
    def test_boxes_are_found(self, loaded: Alone, name: str) -> None:
        assert any(one["objects"] for one in loaded.run(payload(name)))

    def test_some_answers_end_and_some_are_cut(self, loaded: Alone, library: "Library") -> None:
        results = loaded.run(payload())
        assert [one["truncated"] for one in results] == [not library.ends(call) for call in payload().items]
        assert {one["truncated"] for one in results} == {True, False}

    @pytest.mark.parametrize("most", [1, 2, 7, POSITIONS])
    def test_an_answer_of_few_tokens_is_the_librarys(self, loaded: Alone, library: "Library", most: int) -> None:
        call = payload("<CAPTION>", max_new_tokens=most)
        assert_same(plain(loaded.run(call)), library.run(call), self.tolerance)

    @pytest.mark.parametrize("name", ["<CAPTION_TO_PHRASE_GROUNDING>", "<OPEN_VOCABULARY_DETECTION>"])
    def test_labels_are_what_is_looked_for(self, loaded: Alone, name: str) -> None:
        [listed] = loaded.run(payload(name, SIZES[:1], labels=["a cat", "boat"]))
        [told] = loaded.run(payload(name, SIZES[:1], instruction="a cat, boat"))
        assert listed == told

    def test_a_region_is_read_as_its_place(self, loaded: Alone, library: "Library") -> None:
        call = payload("<REGION_TO_CATEGORY>", instruction=REGION)
        assert_same(plain(loaded.run(call)), library.run(call), self.tolerance)

    def test_what_was_read_is_counted(self, loaded: Alone) -> None:
        [result] = loaded.run(payload("<CAPTION>", SIZES[:1]))
        assert result["images"] == 1
        assert result["tokens"] == len(library_ids("What does the image describe?"))

    @pytest.mark.parametrize(
        ("options", "param"),
        [
            ({"task": "caption"}, "options.task"),
            ({"task": "<OD>", "instruction": "a cat"}, "options.instruction"),
            ({"task": "<OD>", "labels": ["a cat"]}, "options.labels"),
            ({"task": "<REGION_TO_OCR>"}, "options.instruction"),
            ({"task": "<REGION_TO_OCR>", "labels": ["a cat"]}, "options.labels"),
            ({"task": "<OPEN_VOCABULARY_DETECTION>", "instruction": "  "}, "options.instruction"),
            ({"task": "<OPEN_VOCABULARY_DETECTION>", "instruction": "a", "labels": ["b"]}, "options.labels"),
            ({"task": "<OPEN_VOCABULARY_DETECTION>", "instruction": "<OD>"}, "options.instruction"),
            ({"task": "<OPEN_VOCABULARY_DETECTION>", "instruction": "a <image> cat"}, "options.instruction"),
            ({"max_new_tokens": POSITIONS + 1}, "options.max_new_tokens"),
        ],
    )
    def test_a_call_that_it_cannot_answer_is_refused(self, loaded: Alone, options: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            loaded.preparer.prepare(Payload([image((20, 20))], options))
        assert refused.value.param == param

    def test_a_prompt_that_leaves_no_room_for_the_image_is_refused(self, loaded: Alone) -> None:
        with pytest.raises(InputTooLong) as refused:
            loaded.preparer.prepare(payload("<OPEN_VOCABULARY_DETECTION>", instruction="q" * POSITIONS))
        assert refused.value.param == "options.instruction"
        assert refused.value.extra == {"limit": POSITIONS - PLACES}

    def test_scores_that_are_no_numbers_are_not_given_to_a_caller(self, loaded: Alone) -> None:
        weights = loaded.model._model.lm_head.weight.data  # type: ignore[attr-defined]
        before = weights.clone()
        weights[:] = float("nan")
        try:
            [result] = loaded.run(payload(sizes=SIZES[:1]))
        finally:
            weights[:] = before
        assert result["error"]["code"] == NonFiniteOutput.code

    def test_without_a_word_objects_are_found(self, loaded: Alone) -> None:
        [part] = loaded.preparer.prepare(Payload([image((20, 20))], {}))[0]  # type: ignore[misc]  # no error
        assert part.key == POSITIONS  # 1024 unless the decoder has fewer
        assert part.inputs["ids"].tolist() == library_ids("Locate the objects with category name in the image.")


class Library:
    """Transformers' own way, one image at a time."""

    def __init__(self, folder: Path) -> None:
        t = tiny.library
        self._model = t.Florence2ForConditionalGeneration.from_pretrained(folder).eval()
        self._processor = t.AutoProcessor.from_pretrained(folder, backend="pil")

    def run(self, call: Payload) -> list[Mapping[str, Any]]:
        return [self._run(item, **call.options) for item in call.items]

    def _run(self, item: Mapping[str, Any], task: str, max_new_tokens: int, instruction: str = "") -> Mapping[str, Any]:
        picture = Image.open(io.BytesIO(item["images"][0]["data"]))
        [ids] = self._generate(picture, task + instruction, max_new_tokens)
        text = self._processor.batch_decode([ids], skip_special_tokens=False)[0]
        found = self._processor.post_process_generation(text, task=task, image_size=picture.size)
        return regions.result(task, found[task])

    def _generate(self, picture: Any, text: str, most: int, **options: Any) -> Any:
        inputs = self._processor(images=picture, text=text, return_tensors="pt")
        with torch.inference_mode():
            return self._model.generate(**inputs, max_new_tokens=most, do_sample=False, num_beams=1, **options)

    def ends(self, item: Mapping[str, Any]) -> bool:
        picture = Image.open(io.BytesIO(item["images"][0]["data"]))
        return 2 in self._generate(picture, "<OD>", MOST, forced_eos_token_id=None)[0][1:]


def library_ids(prompt: str) -> list[int]:
    ids: list[int] = tokenizer()(f"<s>{prompt}</s>", add_special_tokens=False)["input_ids"]
    return ids


PIECES = ["a cat", " boat", "\n", " the image", "it", "é", "<s>", "</s>", "<pad>", "<od>", "<poly>", "</poly>", "<sep>"]
BAGS = {"boxes": (PIECES, 4), "outlines": (["<sep>", "<poly>", "</poly>", "<sep>", "a cat"], 3), "lines": (["cat"], 8)}


def made_up(seed: int, bag: str) -> str:
    """Words and marks between places, as no model would write them."""
    chance = np.random.default_rng(seed)
    pieces, run = BAGS[bag]
    lengths = chance.integers(0, 2 * run + 2, 12)
    runs = ["".join(f"<loc_{place}>" for place in chance.integers(0, 1000, length)) for length in lengths]
    return "".join(str(chance.choice(pieces)) + places for places in runs)


@pytest.fixture(scope="module")
def made() -> Any:
    return processor()


@pytest.mark.parametrize("bag", BAGS)
@pytest.mark.parametrize("name", regions.TASKS)
def test_an_answer_is_read_as_by_the_library(made: Any, name: str, bag: str) -> None:
    texts = [made_up(seed, bag) for seed in range(60)]

    ours = [regions.read(regions.TASKS[name], text, (641, 479), BANNED) for text in texts]

    assert ours == [made.post_process_generation(text, task=name, image_size=(641, 479))[name] for text in texts]


@pytest.mark.parametrize("size", [(1, 1), (768, 768), (641, 479), (1333, 20), (7000, 7141)])
def test_every_place_is_the_librarys_pixel(made: Any, size: tuple[int, int]) -> None:
    text = "".join(f"cat<loc_{at}><loc_{999 - at}><loc_{at}><loc_{at}>" for at in range(1000))

    ours = regions.read(regions.TASKS["<OD>"], text, size)

    assert len(ours["bboxes"]) == 1000
    assert ours == made.post_process_generation(text, task="<OD>", image_size=size)["<OD>"]


def test_outlines_are_objects_with_the_box_around_them() -> None:
    name = "<OPEN_VOCABULARY_DETECTION>"
    text = "boat<poly><loc_100><loc_200><loc_300><loc_250><loc_150><loc_400></poly>"

    answer = regions.read(regions.TASKS[name], text, (1000, 1000))

    assert regions.result(name, answer)["objects"] == [{"label": "boat", "score": 1.0, "bbox": [100, 200, 300, 400]}]


def test_a_line_has_the_box_around_its_corners() -> None:
    name = "<OCR_WITH_REGION>"
    text = "Total<loc_100><loc_100><loc_200><loc_110><loc_190><loc_200><loc_90><loc_190>"

    [line] = regions.result(name, regions.read(regions.TASKS[name], text, (1000, 1000)))["entities"]

    assert line == {"text": "Total", "label": "text", "score": 1.0, "bbox": [90, 100, 200, 200]}


def test_tasks_and_prompts_are_the_librarys(made: Any) -> None:
    prompts = {**made.task_prompts_without_inputs, **made.task_prompts_with_input}
    assert {name: task.prompt for name, task in regions.TASKS.items()} == prompts


class TestLoading:
    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint")
        write(folder)
        return folder

    @pytest.fixture
    def other(self, folder: Path, tmp_path: Path) -> Path:
        return tiny.copy(folder, tmp_path / "other")

    def test_the_processors_files_of_before_2026_are_read(self, folder: Path, other: Path) -> None:
        """An image processor has had a file of its own."""
        file = other / "processor_config.json"
        config = json.loads(file.read_bytes())
        tiny.write(other / "preprocessor_config.json", config.pop("image_processor"))
        tiny.write(file, config)
        call = payload("<CAPTION_TO_PHRASE_GROUNDING>")

        one, before = (Alone(spec(), each).run(call) for each in (folder, other))

        assert before == one

    @pytest.mark.parametrize(
        ("repo", "named"),
        [
            ("microsoft/Florence-2-large-ft", "florence-community/Florence-2-large-ft has the same weights"),
            ("somebody/florence-of-mine", "florence-community has"),
        ],
    )
    def test_the_layout_with_code_of_its_own_says_where_another_is(self, other: Path, repo: str, named: str) -> None:
        config = json.loads((other / "config.json").read_bytes())
        tiny.write(other / "config.json", {**config, "auto_map": {"AutoConfig": "configuration_florence2.Config"}})

        with pytest.raises(ModelLoadFailed, match=named) as failed:
            florence.preparer(spec(source=Source(repo)), other)
        assert failed.value.extra == {"error_class": "UNSUPPORTED", "permanent": True}

    @pytest.mark.parametrize(
        ("changes", "wrong"),
        [
            ({"model_type": "owlv2"}, "it is 'owlv2'"),
            ({"text_config": {"model_type": "florence2_language"}}, "code of its own"),
        ],
    )
    def test_a_checkpoint_of_another_kind_does_not_load(self, other: Path, changes: dict[str, Any], wrong: str) -> None:
        config = json.loads((other / "config.json").read_bytes())
        tiny.write(other / "config.json", {**config, **changes})

        with pytest.raises(ModelLoadFailed, match=wrong):
            florence.preparer(spec(), other)

    def test_a_load_option_that_it_does_not_know_is_refused(self, folder: Path) -> None:
        with pytest.raises(ModelLoadFailed, match=r"load\.beams is unknown"):
            florence.preparer(spec(load={"beams": 3}), folder)


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec("org/florence", "florence", ("extract",), inputs=("image",), **fields)


ENTRIES = {
    entry.model.spec.model: entry.model
    for entry in loader.load([loader.ENTRIES])
    if entry.model.spec.family == "florence"
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_shipped_entries_ask_for_what_the_family_has(entry: Model) -> None:
    assert entry.spec.load.keys() <= {"dtype"}
    assert entry.spec.source.repo == entry.spec.model
    assert entry.spec.model.replace("florence-community", "microsoft") in entry.aliases
    assert {options.get("task", "<OD>") for options in entry.profiles.values()} <= regions.TASKS.keys()
