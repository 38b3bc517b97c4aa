"""Bytes that claim to be sound to mono float32 samples at a model's rate, or a typed error that names the audio.

What a file holds is told from its bytes; what the caller says of it is believed only of bare samples, which have no
header. Lengths are checked before a sample is decoded and again while they come, a block at a time, so that a small
file cannot take the worker's memory or its time. `extra["reason"]` of an error says which fault it is. No torch.
"""

import functools
import io
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import soundfile

from protocol.errors import InputTooLong, InvalidInput
from workers.layers import audio_files

MAX_BYTES = 64 << 20
MAX_SECONDS = 1800
MAX_SAMPLES = 200_000_000  # of all channels together: what bounds the time to decode
MAX_CHANNELS = 8
RATES = (4_000, 192_000)  # Hz
MAX_LEVEL = 32_768.0  # full scale is 1; floats beyond 16-bit numbers are no sound
BARE = "pcm"  # the one format that has to be said: 16-bit little-endian samples, one channel

CORRUPT, UNSUPPORTED, EMPTY, TOO_LARGE = "audio_corrupt", "audio_type_unsupported", "audio_empty", "audio_too_large"

_WHERE = "audio"
_FULL_SCALE = np.float32(32_768)
_BLOCK = 1 << 19  # samples of one channel, about
_REACH = 10  # zero crossings of the low-pass on either side
_SUBTYPES = frozenset(
    ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS", "OPUS")
) | {f"MPEG_LAYER_{layer}" for layer in ("I", "II", "III")}


def read(raw: Mapping[str, Any], rate: int) -> np.ndarray:
    """Samples at `rate` Hz of an item's `audio`, channels averaged. Raises InvalidInput, InputTooLong."""
    data: bytes = raw["data"]
    if len(data) > MAX_BYTES:
        raise _too_large(f"has {len(data)} bytes; at most {MAX_BYTES} are read", MAX_BYTES)
    if raw.get("format") == BARE:
        own, blocks = _bare(data, raw.get("sample_rate"))
        return _joined(_at_rate(blocks, own, rate))
    kind = audio_files.sniff(data)
    if kind not in audio_files.FORMATS:
        known = ", ".join(audio_files.FORMATS)
        found = "of no kind of sound that is known" if kind is None else f"{kind}, which is not read"
        raise _fault(UNSUPPORTED, f"is {found}; there are: {known}, and {BARE} where the caller says so")
    audio_files.check_whole(kind, data)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_head(file, kind, data, raw.get("sample_rate"))
            return _joined(_at_rate(_decoded(file, kind), file.samplerate, rate))
    except (soundfile.SoundFileError, ValueError, OverflowError) as error:
        raise _damaged(kind) from error


def _check_head(file: Any, kind: str, data: bytes, said: int | None) -> None:
    if file.subtype not in _SUBTYPES:
        raise _fault(UNSUPPORTED, f"is {kind} coded as {file.subtype}, which is not read")
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise _too_large(f"has {file.channels} channels; at most {MAX_CHANNELS} are read", MAX_CHANNELS)
    _check_rate(file.samplerate)
    if said is not None and said != file.samplerate:
        raise _fault(CORRUPT, f"is said to have {said} Hz but has {file.samplerate}")
    if file.frames >= audio_files.UNTOLD:
        raise _fault(CORRUPT, f"is {kind} whose header does not tell its length, as a pipe writes it")
    _check_length(file.frames, file.channels, file.samplerate)
    if kind == "mp3":
        audio_files.check_index(data, file.frames)


def _decoded(file: Any, kind: str) -> Iterator[np.ndarray]:
    """Blocks of mono samples; an error for a file that ends before its header says."""
    size, done = _block_size(file.samplerate), 0
    while done < file.frames:
        block = file.read(size, dtype="float32", always_2d=True)
        done += len(block)
        if len(block):
            yield _checked(block.mean(1) if file.channels > 1 else block[:, 0])
        if len(block) < size:
            break
    if done < file.frames:
        raise _damaged(kind)


def _bare(data: bytes, own: int | None) -> tuple[int, Iterator[np.ndarray]]:
    if own is None:
        raise InvalidInput(f"{_WHERE} of bare samples needs their sample_rate", param=f"{_WHERE}.sample_rate")
    _check_rate(own)
    if len(data) % 2:
        raise _damaged(BARE)
    samples = np.frombuffer(data, "<i2")
    _check_length(len(samples), 1, own)
    size = _block_size(own)
    return own, (samples[start : start + size] / _FULL_SCALE for start in range(0, len(samples), size))


def _check_rate(own: int) -> None:
    if not RATES[0] <= own <= RATES[1]:
        raise _fault(UNSUPPORTED, f"has {own} Hz; {RATES[0]} to {RATES[1]} are read")


def _check_length(frames: int, channels: int, own: int) -> None:
    if frames < 1:
        raise _fault(EMPTY, "has no samples")
    if frames > MAX_SECONDS * own:
        raise _too_large(f"has {frames // own} seconds; at most {MAX_SECONDS} are read", MAX_SECONDS)
    if frames * channels > MAX_SAMPLES:
        raise _too_large(f"has {frames * channels} samples; at most {MAX_SAMPLES} are read", MAX_SAMPLES)


def _checked(block: np.ndarray) -> np.ndarray:
    if not np.abs(block).max() <= MAX_LEVEL:  # false of NaN too
        raise _fault(CORRUPT, "has samples that are no numbers, or none of a sound")
    return block


def _block_size(own: int) -> int:
    """A multiple of the rate, so that blocks begin at the same phase of any other rate."""
    return own * max(1, _BLOCK // own)


def _at_rate(blocks: Iterator[np.ndarray], own: int, rate: int) -> Iterator[np.ndarray]:
    """The same sound at another rate, the same as if it were resampled whole: each block sees its neighbours."""
    if own == rate:
        yield from blocks
        return
    from scipy import signal  # slow to import

    divisor = math.gcd(own, rate)
    up, down = rate // divisor, own // divisor
    taps = _low_pass(up, down)
    seen = down * math.ceil(len(taps) / (2 * up * down))
    before, current = np.zeros(0, np.float32), next(blocks, None)
    while current is not None:
        after = next(blocks, None)
        around = [before, current] if after is None else [before, current, after[:seen]]
        found = signal.resample_poly(np.concatenate(around), up, down, window=taps)
        start = len(before) * up // down
        yield found[start : start + math.ceil(len(current) * up / down)]
        before, current = current[-seen:], after


@functools.lru_cache(maxsize=4)
def _low_pass(up: int, down: int) -> np.ndarray:
    from scipy import signal

    most = max(up, down)
    taps: np.ndarray = signal.firwin(2 * _REACH * most + 1, 1 / most, window=("kaiser", 5.0)).astype(np.float32)
    return taps


def _joined(blocks: Iterator[np.ndarray]) -> np.ndarray:
    return np.concatenate([block.astype(np.float32, copy=False) for block in blocks])


def _damaged(kind: str) -> InvalidInput:
    return _fault(CORRUPT, f"could not be read as {kind}: it is damaged or cut short")


def _fault(reason: str, what: str) -> InvalidInput:
    return InvalidInput(f"{_WHERE} {what}", param=_WHERE, extra={"reason": reason})


def _too_large(what: str, limit: int) -> InputTooLong:
    return InputTooLong(f"{_WHERE} {what}", param=_WHERE, extra={"reason": TOO_LARGE, "limit": limit})
