"""Whisper with random weights, against transformers' feature extractor, tokenizer and `generate`."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from inference.dialects.languages import NAMES
from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract
from workers.families import whisper
from workers.families.alone import Alone
from workers.layers import hearing
from workers.layers.pauses import cuts

RATE, SECONDS, POSITIONS, ROOM = 16_000, 2, 100, 40
END, START, TIMESTAMPS = 256, 257, 267
LANGUAGES = {"en": 258, "de": 259, "fr": 260}
MARKS = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>"]
MARKS += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
GENERATION: dict[str, Any] = {
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": mark for code, mark in LANGUAGES.items()},
    "task_to_id": {"translate": 261, "transcribe": 262},
    "no_timestamps_token_id": TIMESTAMPS - 1,
    "prev_sot_token_id": 264,
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": END,
    "max_length": ROOM,
    "suppress_tokens": [1, 2, 7, 8, 9, 10, *range(257, 266)],
    "begin_suppress_tokens": [220, END],
    "max_initial_timestamp_index": 50,
    "forced_decoder_ids": None,
}
LENGTHS = [0.4, 0.9, 1.4, 2.0, 4.3]


def alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer() -> Any:
    made = tiny.library.WhisperTokenizer(vocab={letter: at for at, letter in enumerate(alphabet())}, merges=[])
    made.add_tokens([tiny.library.AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    made.add_tokens([f"<|{at * 0.02:.2f}|>" for at in range(POSITIONS + 1)])
    return made


def write(folder: Path, seed: int = 0, **generation: Any) -> None:
    torch.manual_seed(seed)
    t = tiny.library
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    special = {"pad_token_id": END, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}
    config = t.WhisperConfig(
        vocab_size=TIMESTAMPS + POSITIONS + 1, d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, init_std=0.3,
        max_source_positions=POSITIONS, max_target_positions=ROOM, suppress_tokens=None, begin_suppress_tokens=None,
        **layers, **special,
    )  # fmt: skip
    model = t.WhisperForConditionalGeneration(config)
    model.model.decoder.embed_tokens.weight.data[END] *= 2  # or hardly an answer would end
    said = {**GENERATION, **generation}
    model.generation_config = t.GenerationConfig(**{name: value for name, value in said.items() if value is not ...})
    model.save_pretrained(folder)
    t.WhisperFeatureExtractor(chunk_length=SECONDS).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def sound(seconds: float) -> np.ndarray:
    """Three tones in noise, other ones for other lengths."""
    random = np.random.default_rng(int(seconds * 100))
    times = np.arange(int(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * hertz * times) for hertz in random.uniform(100, 4000, 3))
    mixed: np.ndarray = tones / 8 + random.standard_normal(len(times)) / 50
    return mixed.astype(np.float32)


def item(samples: np.ndarray | float, kind: str = "WAV") -> dict[str, Any]:
    file, subtype = io.BytesIO(), {"WAV": "FLOAT", "OGG": "VORBIS"}[kind]
    soundfile.write(
        file,
        sound(samples) if isinstance(samples, float) else samples,
        RATE,
        subtype,
        format=kind,
        compression_level=0.9 if kind == "OGG" else None,
    )
    return {"audio": {"data": file.getvalue()}}


class Library:
    """What transformers makes of the same windows."""

    def __init__(self, folder: Path) -> None:
        t = tiny.library
        self.model = t.WhisperForConditionalGeneration.from_pretrained(folder).eval()
        self.extractor = t.WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = t.WhisperTokenizer.from_pretrained(folder)

    def windows(self, item: Mapping[str, Any]) -> list[np.ndarray]:
        samples, _ = soundfile.read(io.BytesIO(item["audio"]["data"]), dtype="float32")
        return list(np.split(samples, cuts(samples, SECONDS * RATE, RATE)))

    def ids(self, samples: np.ndarray, options: Mapping[str, Any]) -> list[int]:
        ids: list[int] = self.generated(samples, options)["sequences"][0].tolist()
        return ids[: ids.index(END)] if END in ids else ids

    def generated(self, samples: np.ndarray, options: Mapping[str, Any]) -> Mapping[str, Any]:
        features = self.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        asked = {"task": options.get("task", "transcribe"), "language": options.get("language")}
        if options.get("instruction"):
            asked["prompt_ids"] = torch.tensor(self.tokenizer.get_prompt_ids(options["instruction"]))
        if not options.get("timestamps"):  # which random weights would give unasked
            asked["suppress_tokens"] = [*GENERATION["suppress_tokens"], *range(TIMESTAMPS, TIMESTAMPS + POSITIONS + 1)]
        if options.get("max_new_tokens"):
            asked["max_new_tokens"] = options["max_new_tokens"]
        with torch.inference_mode():
            timed = bool(options.get("timestamps"))
            found: Mapping[str, Any] = self.model.generate(
                features, return_timestamps=timed, return_segments=True, **asked
            )
        return found

    def language(self, samples: np.ndarray) -> int:
        features = self.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        mark: int = self.model.detect_language(features).item()
        return mark

    def read(self, item: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        windows = self.windows(item)
        said = "".join(self.tokenizer.decode(self.ids(one, options), skip_special_tokens=True) for one in windows)
        marks = {mark: code for code, mark in LANGUAGES.items()}
        spoken = [(len(one), marks[self.language(one)]) for one in windows]
        spans = {code: sum(length for length, other in spoken if other == code) for _, code in spoken}
        language = options.get("language") or max(spans, key=lambda code: spans[code])
        length = sum(map(len, windows)) * 1000 // RATE
        return {"data": {"transcript": said.strip(), "language": language, "duration_ms": length}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def library(made: Path) -> Library:
    return Library(made)


def spec(**more: Any) -> ModelSpec:
    return ModelSpec("org/whisper", "whisper", ("extract",), inputs=("audio",), **more)


class TestWhisper(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        write(folder)
        return spec()

    @classmethod
    def payload(cls) -> Payload:
        return Payload([item(seconds, "OGG") for seconds in LENGTHS], {"max_new_tokens": 12})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        library = Library(folder)
        return [library.read(one, payload.options) for one in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"audio": {"data": item(1.0, "OGG")["audio"]["data"][:4000]}}

    def test_different_sounds_are_heard_differently(self, expected: list[Mapping[str, Any]]) -> None:
        assert len({one["data"]["transcript"] for one in expected}) > 3
        assert len({one["data"]["language"] for one in expected}) > 1

    def test_milliseconds_are_counted(self, loaded: Alone) -> None:
        counts = [result["audio_ms"] for result in loaded.run(self.payload())]
        assert counts == [int(seconds * 1000) for seconds in LENGTHS]


CALLS: list[dict[str, Any]] = [
    {},
    {"language": "de"},
    {"language": "fr", "task": "translate"},
    {"timestamps": True},
    {"timestamps": True, "language": "en", "max_new_tokens": 5},
    {"max_new_tokens": 3},
    {"instruction": "Names: Ada"},
    {"instruction": "xyz", "timestamps": True, "language": "de"},
]


@pytest.fixture(scope="module")
def alone(made: Path) -> Alone:
    return Alone(spec(), made)


def part(alone: Alone, samples: np.ndarray, options: dict[str, Any]) -> Any:
    [[found]] = alone.preparer.prepare(Payload([item(samples)], options))  # type: ignore[misc]  # not an error
    return found


def aligned(ids: Sequence[int]) -> list[int]:
    """Ours count timestamps from the window's beginning, theirs from where a pass began."""
    return [min(token, TIMESTAMPS) for token in ids]


@pytest.mark.parametrize("options", CALLS)
@pytest.mark.parametrize("seed", range(2))
def test_tokens_are_the_librarys(tmp_path: Path, options: dict[str, Any], seed: int) -> None:
    write(tmp_path, seed)
    ours = Alone(spec(), tmp_path)
    expected = Library(tmp_path).ids(sound(2.0), options)
    assert len(expected) > 1

    [heard] = ours.forward([part(ours, sound(2.0), options)])

    assert aligned(heard["ids"].tolist()) == aligned(expected)


def test_calls_of_every_kind_share_a_forward(alone: Alone, library: Library) -> None:
    sounds = [sound(seconds) for seconds in (2.0, 1.3, 0.7, 2.0, 2.0, 1.6, 1.0, 2.0)]
    parts = [part(alone, samples, options) for samples, options in zip(sounds, CALLS, strict=True)]
    assert {one.key for one in parts} == {None}

    together = alone.forward(parts)

    expected = [library.ids(samples, options) for samples, options in zip(sounds, CALLS, strict=True)]
    assert [aligned(heard["ids"].tolist()) for heard in together] == [aligned(ids) for ids in expected]


@pytest.mark.parametrize("seed", range(3))
def test_segments_are_the_librarys(tmp_path: Path, seed: int) -> None:
    """But for a last one without an end, which the library gives the end of what came before."""
    write(tmp_path, seed)
    theirs = Library(tmp_path)
    options = {"timestamps": True, "language": "en"}
    [result] = Alone(spec(), tmp_path).run(Payload([item(2.0)], options))
    found = [(one["start_ms"], one["end_ms"], one["text"]) for one in result["data"]["segments"]]

    expected = [
        (*(min(2000, round(1000 * float(one[edge]))) for edge in ("start", "end")), text)
        for one in theirs.generated(sound(2.0), options)["segments"][0]
        if (text := theirs.tokenizer.decode(one["tokens"], skip_special_tokens=True).strip())
    ]

    assert len(found) == len(expected) > 1
    assert found[:-1] == expected[:-1]
    assert found[-1][2] == expected[-1][2]


def test_segments_of_later_windows_are_counted_from_the_beginning(alone: Alone) -> None:
    [result] = alone.run(Payload([item(5.3)], {"timestamps": True, "language": "en"}))
    segments = result["data"]["segments"]
    starts = [one["start_ms"] for one in segments]
    assert starts == sorted(starts)
    assert starts[-1] > 4000
    assert all(0 <= one["start_ms"] <= one["end_ms"] <= 5300 for one in segments)
    assert all(0 <= one["no_speech"] <= 1 and one["avg_logprob"] <= 0 for one in segments)


def test_what_does_not_end_is_heard_again_only_so_often(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "MAX_PASSES", 1)
    one = part(alone, sound(2.0), {"timestamps": True, "max_new_tokens": 5})
    [once] = alone.forward([one])
    monkeypatch.undo()
    [often] = alone.forward([one])
    assert len(once["ids"]) <= 5 < len(often["ids"])


@pytest.mark.parametrize(("most", "is_cut"), [(3, True), (ROOM, False)])
def test_an_answer_that_was_cut_short_says_so(tmp_path: Path, most: int, is_cut: bool) -> None:
    write(
        tmp_path,
        begin_suppress_tokens=[],
        suppress_tokens=[END] if is_cut else [*range(END), *range(START, TIMESTAMPS)],
    )
    [result] = Alone(spec(), tmp_path).run(Payload([item(1.0)], {"max_new_tokens": most}))
    assert result["truncated"] == is_cut


def test_scores_that_are_no_numbers_are_an_error_of_their_item(tmp_path: Path) -> None:
    write(tmp_path)
    alone = Alone(spec(), tmp_path)
    good, bad = (part(alone, sound(2.0), {}) for _ in range(2))
    bad.inputs["features"][:] = np.nan
    whole, broken = alone.forward([good, bad])
    assert alone.preparer.finish([whole], [good], {})["data"]["transcript"]
    with pytest.raises(NonFiniteOutput):
        alone.preparer.finish([broken], [bad], {})


def test_a_long_sound_is_cut_where_it_is_quiet() -> None:
    samples = sound(5.0)
    for start in (1.72, 3.55):
        samples[int(start * RATE) : int((start + 0.2) * RATE)] /= 1000
    found = cuts(samples, SECONDS * RATE, RATE)
    assert [round(place / RATE, 1) for place in found] == [1.8, 3.6]


@pytest.mark.parametrize("length", [1, 100, 32_000, 32_001, 64_000, 100_000])
def test_no_piece_is_longer_than_a_window(length: int) -> None:
    edges = [0, *cuts(np.zeros(length, np.float32), 32_000, RATE), length]
    assert all(0 < size <= 32_000 for size in np.diff(edges))


def test_every_window_costs_the_same(alone: Alone) -> None:
    [short, long] = alone.preparer.prepare(Payload([item(0.1), item(5.3)], {}))
    assert isinstance(short, list) and isinstance(long, list)
    assert [one.cost for one in short] == [POSITIONS]
    assert [one.cost for one in long] == [POSITIONS] * 3


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"language": "xx"}, "options.language"),
        ({"task": "summarise"}, "options.task"),
        ({"instruction": "x" * ROOM}, "options.instruction"),
        ({"pages": [1, 2]}, "options.pages"),
        ({"labels": ["a"]}, "options.labels"),
    ],
)
def test_options_that_it_cannot_honour_are_refused(alone: Alone, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        alone.preparer.prepare(Payload([item(0.1)], options))
    assert refused.value.param == param


def test_marks_in_a_prompt_are_text(alone: Alone) -> None:
    one = part(alone, sound(0.1), {"instruction": "<|de|>"})
    assert one.inputs["prompt"].tolist()[0] == GENERATION["prev_sot_token_id"]
    assert (one.inputs["prompt"][1:] < END).all()


def test_an_item_without_audio_is_refused(alone: Alone) -> None:
    [error] = alone.preparer.prepare(Payload([{"images": []}], {}))
    assert isinstance(error, InvalidInput)
    assert error.param == "audio"


def test_too_long_a_sound_is_refused_alone(alone: Alone) -> None:
    silence = np.zeros(3601 * 8000, np.int16)
    file = io.BytesIO()
    soundfile.write(file, silence, 8000, "PCM_16", format="FLAC")
    bad, good = alone.preparer.prepare(Payload([{"audio": {"data": file.getvalue()}}, item(0.1)], {}))
    assert isinstance(bad, InputTooLong)
    assert isinstance(good, list)


ENGLISH: dict[str, Any] = {"is_multilingual": False, "lang_to_id": ..., "task_to_id": ...}


def test_a_model_of_english_alone_is_the_librarys(tmp_path: Path) -> None:
    write(tmp_path, **ENGLISH)
    ours, theirs = Alone(spec(), tmp_path), Library(tmp_path)
    samples = sound(2.0)

    features = theirs.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    quiet = [*GENERATION["suppress_tokens"], *range(TIMESTAMPS, TIMESTAMPS + POSITIONS + 1)]
    with torch.inference_mode():
        [expected] = theirs.model.generate(features, suppress_tokens=quiet)

    [heard] = ours.forward([part(ours, samples, {"language": "en", "task": "transcribe"})])
    assert heard["ids"].tolist() == expected.tolist()[: len(heard["ids"])]
    assert ours.preparer.finish([heard], [part(ours, samples, {})], {})["data"]["language"] == "en"


@pytest.mark.parametrize("options", [{"language": "de"}, {"task": "translate"}])
def test_a_model_of_english_alone_refuses_other_languages(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path, **ENGLISH)
    with pytest.raises(InvalidInput):
        Alone(spec(), tmp_path).preparer.prepare(Payload([item(0.1)], options))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"model_type": "bert"}),
        ("config.json", {"num_mel_bins": 128}),
        ("generation_config.json", {"no_timestamps_token_id": ...}),
        ("preprocessor_config.json", {"dither": 0.1}),
        ("preprocessor_config.json", {"chunk_length": 30}),
        ("tokenizer.json", {"model": ...}),
    ],
)
def test_a_checkpoint_that_it_cannot_honour_is_refused(tmp_path: Path, file: str, change: dict[str, Any]) -> None:
    write(tmp_path)
    document = {**json.loads((tmp_path / file).read_text()), **change}
    tiny.write(tmp_path / file, {name: value for name, value in document.items() if value is not ...})
    with pytest.raises(ModelLoadFailed):
        whisper.preparer(spec(), tmp_path)


def test_languages_have_the_names_that_the_library_gives_them() -> None:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES as NAMED

    assert NAMES == NAMED


def test_an_option_of_the_entry_that_means_nothing_is_refused(made: Path) -> None:
    with pytest.raises(ModelLoadFailed):
        whisper.preparer(spec(load={"beams": 5}), made)
