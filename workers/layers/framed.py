"""An image fitted into a frame of one size, the way Donut was trained: shrunk until it fits, black around it.

Turned first, where the processor says so, if it lies and the frame stands. Method: transformers'
`DonutImageProcessorPil`, step by step. Pillow and NumPy, no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from workers.layers import images, pixels
from workers.weights.failures import UNSUPPORTED, load_failed

KIND = "DonutImageProcessor"

_SIZE = {"height": 2560, "width": 1920}  # where the file is silent
_STEPS = ("do_resize", "do_thumbnail", "do_pad")


@dataclass(frozen=True, slots=True)
class Frame:
    """`size` is (height, width). What the model reads of a byte is (byte * factor - mean) / std."""

    size: tuple[int, int]
    turns: bool
    resample: Image.Resampling
    factor: float
    mean: np.ndarray
    std: np.ndarray

    def apply(self, image: Image.Image) -> np.ndarray:
        """Channels last, uint8: a page as floats would be four times as large on its way to the engine."""
        if self.turns and _lie_across(image.size, self.size[::-1]):
            image = image.transpose(Image.Transpose.ROTATE_270)
        fitted = self._fitted(image)
        top, left = (self.size[0] - fitted.height) // 2, (self.size[1] - fitted.width) // 2
        page = np.zeros((*self.size, 3), np.uint8)
        page[top : top + fitted.height, left : left + fitted.width] = np.asarray(fitted)
        return page

    def _fitted(self, image: Image.Image) -> Image.Image:
        """By the shorter side, then to what the frame holds; both at once where the first would make a giant."""
        first = _by_shorter(image.size, min(self.size))
        second = _shrunk(first, self.size)
        if first[0] * first[1] <= images.MAX_PIXELS:
            image = image.resize(first, self.resample)
        return image if image.size == second else image.resize(second, self.resample or Image.Resampling.BICUBIC)


def _lie_across(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether one stands and the other lies; a square does neither."""
    return (one[0] - one[1]) * (other[0] - other[1]) < 0


def _by_shorter(size: tuple[int, int], edge: int) -> tuple[int, int]:
    """Width and height."""
    width, height = size
    if width <= height:
        return edge, int(edge * height / width)
    return int(edge * width / height), edge


def _shrunk(size: tuple[int, int], frame: tuple[int, int]) -> tuple[int, int]:
    """Width and height."""
    width, height = min(size[0], frame[1]), min(size[1], frame[0])
    if (width, height) == size:
        return size
    if size[1] > size[0]:
        width = max(1, int(size[0] * height / size[1]))
    elif size[0] > size[1]:
        height = max(1, int(size[1] * width / size[0]))
    return width, height


def read(model: str, folder: Path) -> Frame:
    """Raises ModelLoadFailed for a processor of another kind."""
    kind, config = pixels.described(model, folder)
    if kind != KIND:
        raise load_failed(model, UNSUPPORTED, f"its image processor is {kind or 'not named'}; read is {KIND}")
    for step in _STEPS:
        if not config.get(step, True):
            raise load_failed(model, UNSUPPORTED, f"its image processor does without {step}")
    if config.get("do_center_crop"):
        raise load_failed(model, UNSUPPORTED, "its image processor crops")
    normalizes, rescales = config.get("do_normalize", True), config.get("do_rescale", True)
    return Frame(
        _size(config.get("size", _SIZE)),
        bool(config.get("do_align_long_axis")),
        Image.Resampling(config.get("resample", Image.Resampling.BILINEAR)),
        config.get("rescale_factor", 1 / 255) if rescales else 1.0,
        np.asarray(config.get("image_mean", (0.5,) * 3) if normalizes else (0.0,) * 3, np.float32),
        np.asarray(config.get("image_std", (0.5,) * 3) if normalizes else (1.0,) * 3, np.float32),
    )


def _size(said: Mapping[str, int] | list[int]) -> tuple[int, int]:
    """Files of before 2023 say width and height as a list."""
    if isinstance(said, Mapping):
        return int(said["height"]), int(said["width"])
    width, height = said
    return int(height), int(width)
