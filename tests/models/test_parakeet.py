"""Parakeet with random weights, against transformers' model and tokenizer, and its feature extractor's own code."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import audio_utils

from protocol.errors import InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import ExtractContract
from tests.models.test_whisper import RATE, item, sound
from workers.families import parakeet
from workers.families.alone import Alone
from workers.layers import audio, mel

LENGTHS = [0.3, 0.7, 1.1, 1.9, 3.2]
SPEC = ModelSpec("org/parakeet", "parakeet", ("extract",), inputs=("audio",))
BINS = 16


def tokenizer(folder: Path) -> int:
    """Words of sentencepiece's kind, with a token for silence last; how many there are."""
    pieces = ["<unk>", "<pad>", *(f"▁{word}" for word in tiny.words(20)), "▁.", *"abcdefghi", "<blank>"]
    made = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate(pieces)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(mark, special=True) for mark in ("<unk>", "<pad>", "<blank>")])
    whole = tiny.library.ParakeetTokenizer(tokenizer_object=made, pad_token="<pad>", unk_token="<unk>")
    whole.save_pretrained(folder)
    return len(pieces)


def write(folder: Path, kind: str = "CTC") -> None:
    t = tiny.library
    size = tokenizer(folder)
    heads = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    shape = {**heads, "conv_kernel_size": 5, "subsampling_conv_channels": 8, "num_mel_bins": BINS}
    rest: dict[str, Any] = {"decoder_hidden_size": 16, "num_decoder_layers": 1, "blank_token_id": size - 1}
    torch.manual_seed(0)
    config = getattr(t, f"Parakeet{kind}Config")(
        vocab_size=size,
        encoder_config={**shape, "initializer_range": 0.3},
        pad_token_id=size - 1 if kind == "CTC" else 1,
        **({} if kind == "CTC" else rest),
    )
    model = getattr(t, f"ParakeetFor{kind}")(config)
    if kind != "CTC":
        said = {"decoder_start_token_id": size - 1, "suppress_tokens": list(range(size, size + 5))}
        model.generation_config.update(**said)
    model.save_pretrained(folder)
    extractor = {"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": BINS, "sampling_rate": RATE}
    tiny.write(folder / "preprocessor_config.json", extractor)


@pytest.fixture
def extractor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library's own, which wants librosa for nothing but the filters."""

    def filters(*, sr: int, n_fft: int, n_mels: int, **rest: Any) -> np.ndarray:
        bank: Any = audio_utils.mel_filter_bank
        found = bank(n_fft // 2 + 1, n_mels, 0.0, sr / 2, sr, norm="slaney", mel_scale="slaney")
        transposed: np.ndarray = found.T.astype(np.float32)
        return transposed

    code: Any = importlib.import_module("transformers.models.parakeet.feature_extraction_parakeet")
    monkeypatch.setattr(code, "librosa", SimpleNamespace(filters=SimpleNamespace(mel=filters)), raising=False)
    return code.ParakeetFeatureExtractor(feature_size=BINS)


@pytest.mark.parametrize("seconds", [0.02, 0.3, 1.0, 7.7])
def test_features_are_those_of_the_librarys_code(seconds: float, extractor: Any) -> None:
    samples = sound(seconds)
    found = extractor(samples, sampling_rate=RATE, return_tensors="pt")
    wanted = found["input_features"][0][found["attention_mask"][0]].numpy()
    recipe = mel.LevelledRecipe(RATE, 160, 512, 400, 0.97, mel.filters(BINS, 512, RATE))
    ours = recipe.apply(samples)
    assert ours.shape == wanted.shape
    assert np.abs(ours - wanted).max() < 2e-3


class TestCtc(ExtractContract):
    kind = "CTC"

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        write(folder, cls.kind)
        return SPEC

    @classmethod
    def payload(cls) -> Payload:
        return Payload([item(seconds, "OGG") for seconds in LENGTHS])

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        t = tiny.library
        model = getattr(t, f"ParakeetFor{cls.kind}").from_pretrained(folder).eval()
        words = t.ParakeetTokenizer.from_pretrained(folder)
        recipe = mel.read_levelled("org/parakeet", folder)
        results: list[Mapping[str, Any]] = []
        for one in payload.items:
            samples = audio.read(one["audio"], RATE)
            features = torch.from_numpy(recipe.apply(samples))[None]
            with torch.no_grad():
                asked = {"input_features": features, "attention_mask": torch.ones(features.shape[:2]).bool()}
                found = model.generate(**asked, **({} if cls.kind == "CTC" else {"max_new_tokens": 1000}))
            ids = getattr(found, "sequences", found)[0].tolist()
            if cls.kind != "CTC":
                ids = [token for token in ids if token != model.config.blank_token_id]
            text = words.decode(ids, group_tokens=cls.kind == "CTC", skip_special_tokens=True).strip()
            results.append({"data": {"transcript": text, "duration_ms": 1000 * len(samples) // RATE}})
        return results

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"audio": {"data": item(0.5)["audio"]["data"][:300]}}

    def test_something_is_heard(self, expected: list[Mapping[str, Any]]) -> None:
        assert len({result["data"]["transcript"] for result in expected}) > 2

    def test_segments_are_the_transcript_in_order(self, loaded: Alone, expected: list[Mapping[str, Any]]) -> None:
        timed = loaded.run(Payload(self.payload().items, {"timestamps": True, "task": "transcribe"}))
        for result, plain in zip(timed, expected, strict=True):
            segments, data = result["data"]["segments"], plain["data"]
            assert " ".join(segment["text"] for segment in segments) == data["transcript"]
            times = [time for segment in segments for time in (segment["start_ms"], segment["end_ms"])]
            assert times == sorted(times) and (not times or times[-1] <= data["duration_ms"])


class TestTdt(TestCtc):
    kind = "TDT"


class TestRnnt(TestCtc):
    kind = "RNNT"


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tmp_path_factory.mktemp("parakeet")
    write(folder)
    return Alone(SPEC, folder)


def test_a_long_recording_is_heard_to_its_end(ctc: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parakeet, "PIECE_S", 2)
    [found] = ctc.preparer.prepare(Payload([item(7.5)]))
    assert isinstance(found, list)
    assert len(found) >= 4
    assert sum(part.units["audio_ms"] for part in found) == pytest.approx(7500, abs=len(found))
    [result] = ctc.run(Payload([item(7.5)]))
    assert result["data"]["duration_ms"] == 7500


def test_the_shortest_sound_is_read(ctc: Alone) -> None:
    [result] = ctc.run(Payload([item(np.zeros(1, np.float32))]))
    assert result["data"]["transcript"] is not None


def test_what_is_no_number_is_never_a_transcript(ctc: Alone) -> None:
    with pytest.raises(NonFiniteOutput):
        ctc.preparer.finish([{"ids": np.zeros(1, np.int32), "at": np.zeros(1, np.int32), "finite": False}], [], {})
    [output] = ctc.model.forward([{"features": np.full((40, BINS), np.nan, np.float32)}], None)
    assert not output["finite"]


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    tiny.bare("bert", tmp_path)
    with pytest.raises(ModelLoadFailed, match="parakeet_tdt"):
        Alone(SPEC, tmp_path)


def test_a_sentence_ends_a_segment(ctc: Alone) -> None:
    """Whose time is that of its tokens' frames, of 80 ms each."""
    dot = ctc.preparer._tokenizer.token_to_id("▁.")  # type: ignore[attr-defined]
    words = [ctc.preparer._tokenizer.token_to_id(f"▁{word}") for word in tiny.words(3)]  # type: ignore[attr-defined]
    silence = next(iter(ctc.preparer._silent))  # type: ignore[attr-defined]
    ids = np.array([silence, words[0], words[0], dot, silence, words[1], words[2]], np.int32)
    [parts] = ctc.preparer.prepare(Payload([item(2.0)]))
    assert isinstance(parts, list)
    output = {"ids": ids, "at": np.arange(len(ids), dtype=np.int32), "finite": True}
    segments = ctc.preparer.finish([output], parts, {"timestamps": True})["data"]["segments"]
    assert [(one["start_ms"], one["end_ms"]) for one in segments] == [(80, 400), (400, 2000)]
    assert segments[0]["text"].endswith(".") and len(segments[1]["tokens"]) == 2


def test_it_translates_nothing(ctc: Alone) -> None:
    with pytest.raises(InvalidInput) as caught:
        ctc.run(Payload([item(0.3)], {"task": "translate"}))
    assert caught.value.param == "options.task"
