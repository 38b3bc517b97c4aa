"""Log-mel spectrograms as Whisper's and Parakeet's feature extractors make them, in NumPy: no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workers.layers.checkpoint import read_json
from workers.weights.failures import UNSUPPORTED, load_failed

_FILE = "preprocessor_config.json"
_HIGHEST_HZ = 8000.0
_LEAST_POWER = 1e-10
_RANGE = 8.0  # powers of ten below the loudest; what is quieter counts as that


@dataclass(frozen=True, slots=True, eq=False)
class MelRecipe:
    """How one checkpoint wants its windows of sound."""

    rate: int  # Hz
    seconds: int  # of a window
    hop: int  # samples from frame to frame
    width: int  # samples of a frame
    filters: np.ndarray  # (bins, frequencies)

    @property
    def bins(self) -> int:
        return len(self.filters)

    @property
    def samples(self) -> int:
        """Of a whole window."""
        return self.rate * self.seconds

    @property
    def frames(self) -> int:
        return self.samples // self.hop

    def apply(self, samples: np.ndarray) -> np.ndarray:
        """(bins, frames), float32, of at most one window of samples; silence fills it up."""
        filled = np.zeros(self.samples, np.float32)
        filled[: len(samples)] = samples
        edged = np.pad(filled, self.width // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(edged, self.width)[:: self.hop][: self.frames]
        window = np.hanning(self.width + 1)[:-1].astype(np.float32)
        power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
        logs = np.log10(np.maximum(self.filters @ power.T.astype(np.float32), _LEAST_POWER))
        scaled: np.ndarray = (np.maximum(logs, logs.max() - _RANGE) + 4) / 4
        return scaled.astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class LevelledRecipe:
    """How Parakeet wants sound of any length: high tones raised, every bin brought to mean 0 and deviation 1."""

    rate: int  # Hz
    hop: int  # samples from frame to frame
    width: int  # samples of a transform
    inner: int  # samples of them that are looked at
    preemphasis: float
    filters: np.ndarray  # (bins, frequencies)

    @property
    def least(self) -> int:
        """Samples: of fewer than two frames no deviation can be told."""
        return 2 * self.hop

    def apply(self, samples: np.ndarray) -> np.ndarray:
        """(frames, bins), float32."""
        raised = np.concatenate([samples[:1], samples[1:] - np.float32(self.preemphasis) * samples[:-1]])
        edged = np.pad(raised, self.width // 2)
        count = len(samples) // self.hop
        frames = np.lib.stride_tricks.sliding_window_view(edged, self.width)[:: self.hop][:count]
        window = np.zeros(self.width, np.float32)
        start = (self.width - self.inner) // 2
        window[start : start + self.inner] = np.hanning(self.inner)
        power = (np.abs(np.fft.rfft(frames * window, axis=1)) ** 2).astype(np.float32)
        logs = np.log(power @ self.filters.T + np.float32(2**-24))
        levelled: np.ndarray = (logs - logs.mean(0)) / (logs.std(0, ddof=1) + 1e-5)
        return levelled.astype(np.float32)


def read_levelled(model: str, folder: Path) -> LevelledRecipe:
    """Raises ModelLoadFailed for a checkpoint without the file."""
    config: dict[str, Any] | None = read_json(model, folder / _FILE)
    config = config or (read_json(model, folder / "processor_config.json", {}) or {}).get("feature_extractor")
    if config is None:
        raise load_failed(model, UNSUPPORTED, f"its file {_FILE} is missing")
    rate, width = int(config.get("sampling_rate", 16_000)), int(config.get("n_fft", 512))
    return LevelledRecipe(
        rate=rate,
        hop=int(config.get("hop_length", 160)),
        width=width,
        inner=int(config.get("win_length", 400)),
        preemphasis=float(config.get("preemphasis", 0.97)),
        filters=filters(int(config.get("feature_size", 80)), width, rate),
    )


def read(model: str, folder: Path) -> MelRecipe:
    """Raises ModelLoadFailed for a checkpoint without the file, or one that wants what is not done here."""
    config: dict[str, Any] | None = read_json(model, folder / _FILE)
    if config is None:
        raise load_failed(model, UNSUPPORTED, f"its file {_FILE} is missing")
    for name in ("dither", "do_normalize", "padding_value"):
        if config.get(name):
            raise load_failed(model, UNSUPPORTED, f"its file {_FILE} asks for {name}, which is not done")
    rate, width = int(config.get("sampling_rate", 16_000)), int(config.get("n_fft", 400))
    return MelRecipe(
        rate=rate,
        seconds=int(config.get("chunk_length", 30)),
        hop=int(config.get("hop_length", 160)),
        width=width,
        filters=filters(int(config.get("feature_size", 80)), width, rate),
    )


def filters(bins: int, width: int, rate: int) -> np.ndarray:
    """Slaney's triangles, each of one area: (bins, width // 2 + 1), float32."""
    edges = _hertz(np.linspace(_mels(0.0), _mels(_HIGHEST_HZ), bins + 2))
    lower, middle, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    found = np.linspace(0, rate // 2, width // 2 + 1)[None]
    rising, falling = (found - lower) / (middle - lower), (upper - found) / (upper - middle)
    triangles: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * 2 / (upper - lower)
    return triangles.astype(np.float32)


def _mels(hertz: float) -> float:
    """Even steps up to 1000 Hz, a logarithm above."""
    return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def _hertz(mels: np.ndarray) -> np.ndarray:
    return np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
