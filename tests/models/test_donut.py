"""Donut with random weights, against transformers' processor and its own generation."""

import io
import json
import re
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
from protocol.errors import InferenceError, InputTooLong, InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract, assert_same, plain
from tests.models.test_detector import image, png
from workers.families import donut
from workers.families.alone import Alone
from workers.layers import fields, framed

HEIGHT, WIDTH = 64, 48
POSITIONS = 48  # of the decoder
SIZES = [(20, 30), (30, 24), (24, 60), (50, 31), (70, 20)]
TEXTS = ["one latte and two cookies, please", "what is the total of this bill ?", "it isn't 12.50 ."] * 4
NAMES = ("menu", "nm", "price", "answer", "question")
TASKS = ("<s_cord-v2>", "<s_docvqa>", "<s_rvlcdip>")
MARKS = [*TASKS, *(f"<{slash}s_{name}>" for name in NAMES for slash in ("", "/")), "<sep/>", "<yes/>", "<no/>"]
PARSE: dict[str, Any] = {"task": "<s_cord-v2>"}
QUESTION: dict[str, Any] = {"task": "<s_docvqa>", "instruction": "what is the total?"}
LIKELIER = 2  # how much larger the weights of marks are, so that some are written


def tokenizer(**settings: Any) -> Any:
    """As XLM-RoBERTa's: pieces of words, ids 0 to 3 special."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    ready = tiny.library.PreTrainedTokenizerFast(tokenizer_object=made, **names, **settings)
    ready.add_tokens(MARKS, special_tokens=True)
    return ready


def processor(**settings: Any) -> Any:
    t = tiny.library
    return t.DonutProcessor(t.DonutImageProcessorPil(size={"height": HEIGHT, "width": WIDTH}), tokenizer(**settings))


def write(folder: Path) -> None:
    torch.manual_seed(0)
    t = tiny.library
    made = processor()
    size = len(made.tokenizer)
    wide = {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "initializer_range": 0.3}
    encoder = t.DonutSwinConfig(image_size=[HEIGHT, WIDTH], patch_size=4, **wide)
    heads = {"decoder_attention_heads": 2, "decoder_layers": 1, "decoder_ffn_dim": 64, "d_model": 32, "init_std": 0.3}
    decoder = t.MBartConfig(vocab_size=size, max_position_embeddings=POSITIONS, **heads)
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = t.VisionEncoderDecoderModel(config)
    model.decoder.lm_head.weight.data[size - len(MARKS) :] *= LIKELIER
    model.decoder.lm_head.weight.data[2] *= LIKELIER
    model.generation_config.update(no_repeat_ngram_size=2)
    model.save_pretrained(folder)
    made.save_pretrained(folder)


def spec(**options: Any) -> ModelSpec:
    return ModelSpec("org/donut", "donut", ("extract",), inputs=("image",), **options)


def payload(sizes: list[tuple[int, int]] = SIZES, **options: Any) -> Payload:
    return Payload([image(size) for size in sizes], options)


class TestDonut(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        write(folder)
        return spec()

    @classmethod
    def payload(cls) -> Payload:
        return payload(**PARSE)

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        return Library(folder).run(payload)

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": png((30, 30))[:300]}]}

    def test_larger_items_cost_more(self, loaded: Alone) -> None:
        """All images become one size; what costs more is a question and a longer answer."""
        calls = [payload(**PARSE, max_new_tokens=8), payload(**QUESTION, max_new_tokens=8), payload(**PARSE)]
        parts = [loaded.preparer.prepare(call)[0][0] for call in calls]  # type: ignore[index]  # none is an error
        places = HEIGHT * WIDTH // 1024
        asked = len(parts[1].inputs["ids"])
        assert [part.cost for part in parts] == [places + 1 + 8, places + asked + 8, places + POSITIONS]
        assert asked > 1

    @pytest.fixture(scope="class")
    @classmethod
    def library(cls, loaded: Alone, folder: Path) -> "Library":
        return Library(folder)

    @pytest.mark.parametrize("options", [PARSE, QUESTION, {"task": "<s_rvlcdip>"}])
    @pytest.mark.parametrize("most", [{}, {"max_new_tokens": 1}, {"max_new_tokens": 5}])
    def test_every_task_is_answered_as_by_its_library(
        self, loaded: Alone, library: "Library", options: dict[str, Any], most: dict[str, Any]
    ) -> None:
        call = payload(**options, **most)
        assert_same(plain(loaded.run(call)), library.run(call), self.tolerance)

    def test_calls_whose_beginnings_are_as_long_share_a_forward(self, loaded: Alone, library: "Library") -> None:
        calls = [payload([size], task=task) for size, task in zip(SIZES[:3], TASKS[:1] + TASKS[2:] * 2, strict=True)]
        parts = [loaded.preparer.prepare(call)[0][0] for call in calls]  # type: ignore[index]  # none is an error
        assert len({part.key for part in parts}) == 1

        outputs = loaded.forward(parts)

        ours = [
            loaded.preparer.finish([output], [part], call.options)
            for output, part, call in zip(outputs, parts, calls, strict=True)
        ]
        assert_same(plain(ours), [library.run(call)[0] for call in calls], self.tolerance)

    def test_a_question_makes_a_forward_of_its_own(self, loaded: Alone) -> None:
        longer = {**QUESTION, "instruction": "what is the total of this bill?"}
        calls = [payload(SIZES[:1], **options) for options in (PARSE, QUESTION, longer)]
        assert len({loaded.preparer.prepare(call)[0][0].key for call in calls}) == 3  # type: ignore[index]  # as above

    def test_the_images_are_told_apart(self, expected: list[Mapping[str, Any]]) -> None:
        assert len({json.dumps(one) for one in expected}) == len(expected)

    def test_fields_are_found(self, expected: list[Mapping[str, Any]]) -> None:
        assert {name for one in expected for name in one["data"]} & set(NAMES)

    def test_some_answers_end_and_some_are_cut(self, loaded: Alone, library: "Library") -> None:
        results = loaded.run(self.payload())
        assert [one["truncated"] for one in results] == [not library.ends(item) for item in self.payload().items]
        assert {one["truncated"] for one in results} == {True, False}

    def test_what_was_read_is_counted(self, loaded: Alone) -> None:
        [result] = loaded.run(payload(SIZES[:1], **PARSE))
        assert (result["images"], result["tokens"]) == (1, 1)

    @pytest.mark.parametrize(
        ("options", "param"),
        [
            ({}, "options.task"),
            ({"task": "cord-v2"}, "options.task"),
            ({"task": "<s_tickets>"}, "options.task"),
            ({"task": "<sep/>"}, "options.task"),
            ({"task": "<s_docvqa>"}, "options.instruction"),
            ({"task": "<s_docvqa>", "instruction": " "}, "options.instruction"),
            ({**PARSE, "max_new_tokens": POSITIONS}, "options.max_new_tokens"),
            ({**PARSE, "labels": ["menu"]}, "options.labels"),
        ],
    )
    def test_a_call_that_it_cannot_answer_is_refused(self, loaded: Alone, options: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            loaded.preparer.prepare(payload(**options))
        assert refused.value.param == param

    def test_a_question_that_leaves_no_room_for_an_answer_is_refused(self, loaded: Alone) -> None:
        with pytest.raises(InputTooLong) as refused:
            loaded.preparer.prepare(payload(task="<s_docvqa>", instruction="total " * POSITIONS))
        assert refused.value.param == "options.instruction"
        assert refused.value.extra == {"limit": POSITIONS - 1}

    def test_scores_that_are_no_numbers_are_not_given_to_a_caller(self, loaded: Alone) -> None:
        weights = loaded.model._model.decoder.lm_head.weight.data  # type: ignore[attr-defined]
        before = weights.clone()
        weights[:] = float("nan")
        try:
            [result] = loaded.run(payload(SIZES[:1], **PARSE))
        finally:
            weights[:] = before
        assert result["error"]["code"] == NonFiniteOutput.code


class Library:
    """Transformers' own way, one image at a time, as its documentation shows it."""

    def __init__(self, folder: Path) -> None:
        t = tiny.library
        self._model = t.VisionEncoderDecoderModel.from_pretrained(folder).eval()
        images = t.DonutImageProcessorPil.from_pretrained(folder)
        self._processor = t.DonutProcessor(images, t.AutoTokenizer.from_pretrained(folder))

    def run(self, call: Payload) -> list[Mapping[str, Any]]:
        return [self._run(item, **call.options) for item in call.items]

    def _run(
        self, item: Mapping[str, Any], task: str, instruction: str = "", max_new_tokens: int | None = None
    ) -> Mapping[str, Any]:
        text = f"{task}<s_question>{instruction}</s_question><s_answer>" if instruction else task
        found = self._generate(item, text, max_new_tokens)
        tokens = self._processor.tokenizer
        sequence = self._processor.batch_decode(found)[0].replace(tokens.eos_token, "").replace(tokens.pad_token, "")
        sequence = re.sub(r"<.*?>", "", sequence, count=1).strip()
        return fields.result(self._processor.token2json(sequence), bool(instruction))

    def _generate(self, item: Mapping[str, Any], text: str, most: int | None, **options: Any) -> Any:
        picture = Image.open(io.BytesIO(item["images"][0]["data"]))
        tokens = self._processor.tokenizer
        ids = tokens(text, add_special_tokens=False, return_tensors="pt").input_ids
        length = (
            {"max_new_tokens": most} if most else {"max_length": self._model.decoder.config.max_position_embeddings}
        )
        with torch.inference_mode():
            return self._model.generate(
                self._processor(picture, return_tensors="pt").pixel_values,
                decoder_input_ids=ids,
                pad_token_id=tokens.pad_token_id,
                eos_token_id=tokens.eos_token_id,
                bad_words_ids=[[tokens.unk_token_id]],
                **length,
                **options,
            )

    def ends(self, item: Mapping[str, Any]) -> bool:
        return 2 in self._generate(item, "<s_cord-v2>", None, forced_eos_token_id=None)[0]


VALUES = [" latte", "12.50 ", "<yes/>", "<no/>", "<sep/>", "<sep/>", "< b>", "\n", "<s_menu", "<S_NM>x</S_nm>", ""]


def made_up(seed: int) -> str:
    """Fields as no model would write them: crossed, unclosed, separated anywhere."""
    chance = np.random.default_rng(seed)
    fields = [f"<s_{name}>{value}" for name in NAMES[:3] for value in VALUES]
    ends = [f"{value}</s_{name}>{more}" for name in NAMES[:3] for value in VALUES for more in ("", "<sep/>")]
    return "".join(chance.choice([*fields, *ends]) for _ in range(chance.integers(0, 14)))


@pytest.fixture(scope="module")
def made() -> Any:
    return processor()


@pytest.mark.parametrize("group", range(10))
def test_fields_are_read_as_by_the_library(made: Any, group: int) -> None:
    texts = [made_up(seed) for seed in range(group * 100, group * 100 + 100)]

    ours = [fields.read(text, lambda name: name in MARKS) for text in texts]

    assert ours == [made.token2json(text) for text in texts]
    assert {type(found) for found in ours} == {dict, list}


def test_a_receipt_is_read_as_entities_by_their_paths() -> None:
    text = "<s_menu><s_nm>Latte</s_nm><s_price>12</s_price><sep/><s_nm>Tea</s_nm></s_menu><s_total>15</s_total>"

    result = fields.result(fields.read(text, lambda name: False), asked=False)

    assert result["data"] == {"menu": [{"nm": "Latte", "price": "12"}, {"nm": "Tea"}], "total": "15"}
    found = [(one["label"], one["text"]) for one in result["entities"]]
    assert found == [("menu[0].nm", "Latte"), ("menu[0].price", "12"), ("menu[1].nm", "Tea"), ("total", "15")]


def test_an_answer_is_an_entity_and_its_question_is_none() -> None:
    text = "<s_question>how much?</s_question><s_answer>15</s_answer>"

    result = fields.result(fields.read(text, lambda name: False), asked=True)

    assert result["data"] == {"question": "how much?", "answer": "15"}
    assert result["entities"] == [{"text": "15", "label": "answer", "score": 1.0}]


def test_a_class_is_given_as_one() -> None:
    result = fields.result(fields.read("<s_class><memo/></s_class>", lambda name: name == "<memo/>"), asked=False)

    assert result == {"data": {"class": "memo"}, "classifications": [{"label": "memo", "score": 1.0}]}


def test_records_beside_each_other_are_a_list_under_a_name() -> None:
    found = fields.read("<s_nm>Latte</s_nm><sep/><s_nm>Tea</s_nm>", lambda name: False)

    assert fields.result(found, asked=False)["data"] == {"records": [{"nm": "Latte"}, {"nm": "Tea"}]}


def test_fields_that_nest_without_end_are_an_error_of_their_item() -> None:
    names = [f"n{index}" for index in range(fields.DEEPEST + 10)]
    text = "".join(f"<s_{name}>" for name in names) + "".join(f"</s_{name}>" for name in names[::-1])

    with pytest.raises(InferenceError):
        fields.read(text, lambda name: False)


@pytest.mark.parametrize("text", ["it is n't 12 . 50 , is it ?", " ' quoted ' I 'm you 're we 've she 's !"])
def test_spaces_are_tidied_as_by_the_library(made: Any, text: str) -> None:
    assert fields.tidied(text) == made.tokenizer.clean_up_tokenization(text) != text


FRAMES = [{"height": 64, "width": 48}, {"height": 48, "width": 64}, {"height": 64, "width": 64}]


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("frame", FRAMES, ids=str)
@pytest.mark.parametrize("size", [*SIZES, (48, 64), (64, 64), (200, 301), (640, 33), (33, 640)])
def test_pages_are_the_librarys(tmp_path: Path, size: tuple[int, int], frame: dict[str, int], turns: bool) -> None:
    processor = tiny.library.DonutImageProcessorPil(size=frame, do_align_long_axis=turns)
    processor.save_pretrained(tmp_path)
    picture = Image.open(io.BytesIO(png(size)))
    read = framed.read("org/donut", tmp_path)

    ours = (read.apply(picture) * np.float32(read.factor) - read.mean) / read.std

    theirs = processor(picture, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_strip_is_not_blown_up_before_it_is_shrunk(tmp_path: Path) -> None:
    """By its shorter side it would first become 1920 x 192,000 pixels."""
    tiny.library.DonutImageProcessorPil().save_pretrained(tmp_path)
    strip = Image.new("RGB", (30, 3000), "white")

    page = framed.read("org/donut", tmp_path).apply(strip)

    assert page.shape == (2560, 1920, 3)
    assert np.flatnonzero(page.any((0, 2))).tolist() == list(range(947, 947 + 25))
    assert page[:, 947:972].all()


def test_sizes_and_names_of_old_files_are_read(tmp_path: Path) -> None:
    """Of before 2023: the class is a feature extractor, and the size is width and height."""
    config = {"feature_extractor_type": "DonutFeatureExtractor", "size": [960, 1280], "resample": 2, "do_pad": True}
    tiny.write(tmp_path / "preprocessor_config.json", config)

    assert framed.read("org/donut", tmp_path).size == (1280, 960)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "its image processor is CLIPImageProcessor"),
        ({"do_thumbnail": False}, "without do_thumbnail"),
        ({"do_center_crop": True}, "crops"),
    ],
)
def test_other_processors_are_refused(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    tiny.write(tmp_path / "preprocessor_config.json", {"image_processor_type": "DonutImageProcessor", **changes})

    with pytest.raises(ModelLoadFailed, match=wrong):
        framed.read("org/donut", tmp_path)


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

    @pytest.mark.parametrize(
        ("changes", "wrong"),
        [
            ({"model_type": "florence2"}, "it is 'florence2'"),
            ({"encoder": {"model_type": "vit"}}, "its encoder is 'vit'"),
            ({"decoder": {"model_type": "trocr"}}, "its decoder is 'trocr'"),
        ],
    )
    def test_a_checkpoint_of_another_kind_does_not_load(self, other: Path, changes: dict[str, Any], wrong: str) -> None:
        config = json.loads((other / "config.json").read_bytes())
        tiny.write(other / "config.json", {**config, **changes})

        with pytest.raises(ModelLoadFailed, match=wrong):
            donut.preparer(spec(), other)

    def test_a_load_option_that_it_does_not_know_is_refused(self, folder: Path) -> None:
        with pytest.raises(ModelLoadFailed, match=r"load\.beams is unknown"):
            donut.preparer(spec(load={"beams": 3}), folder)

    def test_a_checkpoint_that_knows_no_questions_refuses_them(self, other: Path) -> None:
        text = (other / "tokenizer.json").read_text().replace("<s_question>", "<s_inquiry>")
        (other / "tokenizer.json").write_text(text)

        with pytest.raises(InvalidInput) as refused:
            donut.preparer(spec(), other).prepare(payload(**QUESTION))
        assert refused.value.param == "options.instruction"

    def test_a_tokenizer_that_wants_its_spaces_tidied_gets_it(self, other: Path) -> None:
        config = json.loads((other / "tokenizer_config.json").read_bytes())
        tiny.write(other / "tokenizer_config.json", {**config, "clean_up_tokenization_spaces": True})
        call = payload(**{**QUESTION, "instruction": "is it n't this ?"})

        results = Alone(spec(), other).run(call)

        assert plain(results) == Library(other).run(call)
        assert all("question" in json.dumps(one["data"]) for one in results)


ENTRIES = {
    entry.model.spec.model: entry.model for entry in loader.load([loader.ENTRIES]) if entry.model.spec.family == "donut"
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_shipped_entries_ask_for_what_the_family_has(entry: Model) -> None:
    assert entry.spec.load.keys() <= set(donut.LOAD_OPTIONS)
    assert entry.spec.source.repo == entry.spec.model
    assert entry.profiles["default"]["task"].startswith("<s_")
