"""An image as its checkpoint's processor makes it: resized, cropped, scaled, normalised. Pillow and NumPy, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from workers.layers import squared
from workers.layers.checkpoint import read_json
from workers.weights.failures import UNSUPPORTED, load_failed

_FILES = ("preprocessor_config.json", "processor_config.json")
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BICUBIC, _BILINEAR = Image.Resampling.BICUBIC.value, Image.Resampling.BILINEAR.value
# What a processor does where its file is silent
_SILENT: Mapping[str, Mapping[str, Any]] = {
    "CLIPImageProcessor": {
        "mean": _CLIP_MEAN,
        "std": _CLIP_STD,
        "resample": _BICUBIC,
        "size": {"shortest_edge": 224},
        "crop": True,
    },
    "GroundingDinoImageProcessor": {
        "mean": _IMAGENET_MEAN,
        "std": _IMAGENET_STD,
        "resample": _BILINEAR,
        "size": {"shortest_edge": 800, "longest_edge": 1333},
        "crop": False,
    },
    "Owlv2ImageProcessor": {
        "mean": _CLIP_MEAN,
        "std": _CLIP_STD,
        "resample": _BILINEAR,
        "size": {"height": 960, "width": 960},
        "crop": False,
        "squares": True,
    },
    "SiglipImageProcessor": {
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "resample": _BICUBIC,
        "size": {"height": 224, "width": 224},
        "crop": False,
    },
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes are (height, width)."""

    size: tuple[int, int] | None  # None: by `edge`
    edge: int | None  # what the shorter side becomes,
    longest: int | None  # unless the longer one came out longer than this
    crop: tuple[int, int] | None
    resample: Image.Resampling
    factor: float
    mean: np.ndarray
    std: np.ndarray
    squares: bool = False  # resized as `workers.layers.squared` does

    def apply(self, image: Image.Image) -> np.ndarray:
        """Channels first, float32."""
        if self.squares and self.size:
            return self._normalized(squared.resize(image, self.size, self.factor))
        height, width = self.size or _by_edge(image, int(self.edge or 0), self.longest)
        values = np.asarray(image.resize((width, height), self.resample))
        if self.crop is not None:
            top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
            values = values[top : top + self.crop[0], left : left + self.crop[1]]
        return self._normalized(values.astype(np.float32) * np.float32(self.factor))

    def _normalized(self, values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(((values - self.mean) / self.std).transpose(2, 0, 1))


def read(model: str, folder: Path) -> Recipe:
    """Raises ModelLoadFailed for a processor of another kind."""
    kind, config = described(model, folder)
    if kind not in _SILENT:
        known = ", ".join(_SILENT)
        raise load_failed(model, UNSUPPORTED, f"its image processor is {kind or 'not named'}; read are {known}")
    silent = _SILENT[kind]
    height_width, edge, longest = _size(config.get("size", silent["size"]))
    crop = _crop(config, silent)
    smallest = height_width or (edge or 0, edge or 0)
    if crop is not None and (crop[0] > smallest[0] or crop[1] > smallest[1]):
        raise load_failed(model, UNSUPPORTED, "its image processor crops to more than it resizes to")
    normalizes, rescales = config.get("do_normalize", True), config.get("do_rescale", True)
    return Recipe(
        height_width,
        edge,
        longest,
        crop,
        Image.Resampling(config.get("resample", silent["resample"])),
        config.get("rescale_factor", 1 / 255) if rescales else 1.0,
        np.asarray(config.get("image_mean", silent["mean"]) if normalizes else (0.0,) * 3, np.float32),
        np.asarray(config.get("image_std", silent["std"]) if normalizes else (1.0,) * 3, np.float32),
        bool(silent.get("squares")),
    )


def described(model: str, folder: Path) -> tuple[str, Mapping[str, Any]]:
    """The class of the checkpoint's image processor, under its plain name, and what its file says of it."""
    found = [read_json(model, folder / name) for name in _FILES]
    config: dict[str, Any] = next((one for one in found if one), {})
    config = config.get("image_processor", config)
    kind = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    return kind.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor"), config


def _size(said: Any) -> tuple[tuple[int, int] | None, int | None, int | None]:
    """Files of before 2023 say a number."""
    if isinstance(said, int):
        return None, said, None
    if "shortest_edge" in said:
        return None, int(said["shortest_edge"]), said.get("longest_edge")
    return (int(said["height"]), int(said["width"])), None, None


def _crop(config: Mapping[str, Any], silent: Mapping[str, Any]) -> tuple[int, int] | None:
    if not config.get("do_center_crop", silent["crop"]):
        return None
    said = config.get("crop_size", 224)
    return (said, said) if isinstance(said, int) else (int(said["height"]), int(said["width"]))


def _by_edge(image: Image.Image, edge: int, longest: int | None) -> tuple[int, int]:
    """Height and width, rounded as transformers does."""
    width, height = image.size
    shorter, longer = min(width, height), max(width, height)
    exact: float = edge
    if longest is not None and longer / shorter * edge > longest:
        exact = longest * shorter / longer
    short = round(exact)
    if shorter == short:
        return height, width
    long = int(exact * longer / shorter)
    return (long, short) if width < height else (short, long)
