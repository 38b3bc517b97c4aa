"""Sound files to samples: what is read, what is refused and how, and that nothing else ever happens."""

import io
import math
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from protocol.errors import InputTooLong, InvalidInput
from tests.models import tiny
from workers.layers import audio, audio_files, mel

RATE = 16_000
KINDS = [("WAV", "PCM_16", 1e-4), ("FLAC", "PCM_16", 1e-4), ("OGG", "VORBIS", 0.15), ("MP3", None, 0.15)]


def tone(seconds: float = 1.0, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return (np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate) / 2).astype(np.float32)


def write(samples: np.ndarray, rate: int = RATE, kind: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def read(data: bytes, **said: Any) -> np.ndarray:
    return audio.read({"data": data, **said}, RATE)


def refused(data: bytes, **said: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as found:
        read(data, **said)
    return found.value


@pytest.mark.parametrize(("kind", "subtype", "tolerance"), KINDS)
def test_every_format_is_read(kind: str, subtype: str | None, tolerance: float) -> None:
    samples = tone(2.5)
    found = read(write(samples, kind=kind, subtype=subtype))
    assert found.dtype == np.float32
    assert len(found) == len(samples)
    assert np.abs(found - samples).max() < tolerance


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"])
def test_every_coding_of_a_wav_is_read(subtype: str) -> None:
    samples = tone()
    assert np.abs(read(write(samples, subtype=subtype)) - samples).max() < 0.03


def test_opus_is_read_at_its_own_rate() -> None:
    found = read(write(tone(1.0, 48_000), 48_000, "OGG", "OPUS"))
    assert len(found) == RATE
    assert np.abs(found - tone())[500:-500].max() < 0.1


def test_channels_are_averaged() -> None:
    both = np.stack([tone(), np.zeros(RATE, np.float32)], 1)
    assert np.abs(read(write(both)) - tone() / 2).max() < 1e-4


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 44_101, 48_000, 96_000])
def test_blocks_are_resampled_as_the_whole_would_be(rate: int) -> None:
    samples = tone(40.3, rate, 300.0)
    found = read(write(samples, rate, subtype="FLOAT"))
    divisor = math.gcd(rate, RATE)
    whole = signal.resample_poly(samples.astype(np.float64), RATE // divisor, rate // divisor)
    assert len(found) == len(whole)
    assert np.abs(found - whole).max() < 1e-5
    assert np.abs(found - tone(len(found) / RATE + 1e-6, RATE, 300.0))[2000:-2000].max() < 1e-3


def test_bare_samples_are_read_when_said_to_be() -> None:
    samples = (tone() * 32_767).astype("<i2").tobytes()
    assert np.abs(read(samples, format="pcm", sample_rate=RATE) - tone()).max() < 1e-4


def test_bare_samples_need_their_rate() -> None:
    assert refused(b"\0\0", format="pcm").param == "audio.sample_rate"


def test_what_is_said_of_a_file_is_not_believed() -> None:
    assert len(read(write(tone(), kind="FLAC"), format="mp3")) == RATE


def test_a_rate_that_is_not_the_files_is_refused() -> None:
    assert refused(write(tone()), sample_rate=8_000).param == "audio"


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("kind", "subtype", "tolerance"), KINDS)
def test_a_file_cut_short_is_refused(kind: str, subtype: str | None, tolerance: float, share: float) -> None:
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 3 * RATE).astype(np.float32)
    data = write(noise, kind=kind, subtype=subtype)
    error = refused(data[: int(len(data) * share)])
    assert (error.param, error.extra["reason"]) == ("audio", audio.CORRUPT)


@pytest.mark.parametrize(
    "data",
    [
        b"no sound at all",
        b"RIFF\0\0\0\0WAVE",
        b"fLaC",
        b"OggS",
        b"ID3",
        b"\xff\xfb\x90\x00",
        b"\0\0\0\x20ftypM4A ",
        b"\x1a\x45\xdf\xa3webm",
        b"PK\x03\x04",
        b"FORM\0\0\0\0AIFF",
    ],
)
def test_what_is_no_sound_is_refused(data: bytes) -> None:
    assert refused(data + bytes(64)).param == "audio"


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_file_without_samples_is_refused(kind: str) -> None:
    assert refused(write(np.zeros(0, np.float32), kind=kind)).param == "audio"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_samples_that_are_no_sound_are_refused(wrong: float) -> None:
    samples = tone()
    samples[100] = wrong
    assert refused(write(samples, subtype="FLOAT")).extra["reason"] == audio.CORRUPT


@pytest.mark.parametrize(("channels", "rate"), [(9, RATE), (1, 2_000), (1, 384_000)])
def test_channels_and_rates_beyond_limits_are_refused(channels: int, rate: int) -> None:
    assert refused(write(np.zeros((100, channels), np.float32), rate)).param == "audio"


def silence(hours: float, rate: int = 48_000, channels: int = 2) -> bytes:
    """A FLAC of a few hundred kilobytes an hour."""
    file, minute = io.BytesIO(), np.zeros((60 * rate, channels), np.int16)
    with soundfile.SoundFile(file, "w", rate, channels, format="FLAC", subtype="PCM_16") as written:
        for _ in range(int(hours * 60)):
            written.write(minute)
    return file.getvalue()


@pytest.mark.parametrize("hours", [0.6, 1.0])
def test_hours_of_silence_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    data = silence(hours)
    assert len(data) < 1 << 20
    monkeypatch.setattr(soundfile.SoundFile, "read", None)  # whoever decodes would call None
    error = refused(data)
    assert isinstance(error, InputTooLong)
    assert error.extra["limit"] == audio.MAX_SECONDS


def test_many_channels_count_like_a_longer_sound() -> None:
    error = refused(silence(0.25, 48_000, 8))
    assert isinstance(error, InputTooLong)
    assert error.extra["limit"] == audio.MAX_SAMPLES


@pytest.mark.parametrize("told", [1, 1000, 1 << 31])
def test_a_header_that_lies_about_the_length_decodes_no_more_than_it_says(told: int) -> None:
    data = bytearray(write(tone(3.0), kind="FLAC", subtype="PCM_16"))
    data[22:26] = told.to_bytes(4, "big")
    lengths = {1: 1, 1000: 1000}
    if told in lengths:
        assert len(read(bytes(data))) == lengths[told]
    else:
        assert refused(bytes(data)).param == "audio"


def test_a_flac_from_a_pipe_is_refused() -> None:
    data = bytearray(write(tone(), kind="FLAC", subtype="PCM_16"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    assert "does not tell its length" in refused(bytes(data)).message


@pytest.mark.parametrize("size", [0xFFFF_FFFF, 0x7FFF_FFFF, 0x7FFF_F000])
def test_a_wav_from_a_pipe_is_read(size: int) -> None:
    data = bytearray(write(tone()))
    place = data.index(b"data") + 4
    data[place : place + 4] = size.to_bytes(4, "little")
    assert len(read(bytes(data))) == RATE


def variable_mp3() -> bytes:
    """Silence, then noise, without the index of frames that would tell its length."""
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 20 * RATE).astype(np.float32)
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", RATE, 1, format="MP3", bitrate_mode="VARIABLE", compression_level=0.5) as mp3:
        mp3.write(np.concatenate([noise, np.zeros(40 * RATE, np.float32)]))
    data = file.getvalue()
    _, first = audio_files._frame(data, 0) or (0, 0)
    return data[first:]


def test_an_mp3_whose_end_would_be_lost_is_refused() -> None:
    assert "variable bit rate" in refused(variable_mp3()).message


def test_frames_of_an_mp3_are_counted_behind_its_tags() -> None:
    data = write(tone(2.0), kind="MP3")
    tag = b"ID3\x04\0\0" + bytes((0, 0, 1, 0)) + b"\xff" * 128
    assert len(list(audio_files._frames(tag + data))) == len(list(audio_files._frames(data)))
    assert len(read(tag + data)) == 2 * RATE


SEEDS = [write(tone(0.3), kind=kind, subtype=subtype) for kind, subtype, _ in KINDS]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=12), st.floats(0, 1))
def test_damage_is_read_or_refused_and_nothing_else(data: bytes, changes: list[tuple[float, int]], kept: float) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[min(int(place**3 * len(data)), len(data) - 1)] = value  # near the head, mostly
    try:
        found = read(bytes(damaged[: max(1, int((1 - kept**4) * len(data)))]))
    except InvalidInput as error:
        assert error.param == "audio"
    else:
        assert np.isfinite(found).all()


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("seconds", [0.0005, 0.3, 7.77, 30.0])
def test_spectrograms_are_the_librarys(bins: int, seconds: float) -> None:
    noise = np.random.default_rng(0).standard_normal(int(seconds * RATE)).astype(np.float32) * 0.1
    recipe = mel.MelRecipe(RATE, 30, 160, 400, mel.filters(bins, 400, RATE))
    extractor = tiny.library.WhisperFeatureExtractor(feature_size=bins)

    for samples in (noise, noise + tone(seconds)):
        theirs = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
        np.testing.assert_allclose(recipe.apply(samples), theirs, rtol=0, atol=1e-4)
