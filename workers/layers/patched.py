"""An image as Qwen2-VL's processor makes it: resized to whole patches within a number of pixels, cut into them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from workers.layers.checkpoint import read_json
from workers.weights.failures import UNSUPPORTED, load_failed

_KINDS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_LEAST, _MOST = 56 * 56, 28 * 28 * 1280  # pixels, where the file is silent


@dataclass(frozen=True, slots=True)
class PatchRecipe:
    """`merge` patches by `merge` become one token; each patch is there `frames` times, as a still film."""

    least: int
    most: int
    patch: int
    merge: int
    frames: int
    resample: Image.Resampling
    factor: float
    mean: np.ndarray
    std: np.ndarray

    def apply(self, image: Image.Image) -> tuple[np.ndarray, tuple[int, int]]:
        """(patches, their numbers) float32, the patches of a token side by side; and how many patches high and wide."""
        height, width = self._size(image.height, image.width)
        values = np.asarray(image.resize((width, height), self.resample)).astype(np.float32) * np.float32(self.factor)
        values = ((values - self.mean) / self.std).transpose(2, 0, 1)
        high, wide = height // self.patch, width // self.patch
        blocks = (high // self.merge, self.merge, self.patch, wide // self.merge, self.merge, self.patch)
        patches = values.reshape(3, *blocks).transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        still = np.repeat(patches, self.frames, axis=5)
        return np.ascontiguousarray(still.reshape(high * wide, -1), np.float32), (high, wide)

    def tokens(self, grid: tuple[int, int]) -> int:
        return grid[0] * grid[1] // self.merge**2

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in whole tokens, nearly of the same shape, within the pixels allowed."""
        step = self.patch * self.merge
        high, wide = (round(side / step) * step for side in (height, width))
        if high * wide > self.most:
            shrink = math.sqrt(height * width / self.most)
            return max(step, math.floor(height / shrink / step) * step), max(
                step, math.floor(width / shrink / step) * step
            )
        if high * wide < self.least:
            grow = math.sqrt(self.least / (height * width))
            return math.ceil(height * grow / step) * step, math.ceil(width * grow / step) * step
        return high, wide


def read(model: str, folder: Path) -> PatchRecipe:
    """Raises ModelLoadFailed for a processor of another kind."""
    found = [read_json(model, folder / name) for name in ("preprocessor_config.json", "processor_config.json")]
    config: dict[str, Any] = next((one for one in found if one and ("image_processor" in one or "size" in one)), {})
    config = config.get("image_processor", config)
    kind = config.get("image_processor_type", _KINDS[0])
    if kind not in _KINDS:
        raise load_failed(model, UNSUPPORTED, f"its image processor is {kind}; read is {_KINDS[0]}")
    size = config.get("size") or {}
    return PatchRecipe(
        config.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or _LEAST,
        config.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or _MOST,
        config.get("patch_size", 14),
        config.get("merge_size", 2),
        config.get("temporal_patch_size", 2),
        Image.Resampling(config.get("resample", Image.Resampling.BICUBIC.value)),
        config.get("rescale_factor", 1 / 255),
        np.asarray(config.get("image_mean", _MEAN), np.float32),
        np.asarray(config.get("image_std", _STD), np.float32),
    )
