"""An image made square and resized the way OWLv2 was trained, as scikit-image resizes. NumPy and SciPy, no torch.

The image stands in the upper left corner of a square of zeros, which is blurred as far as it is shrunk and then read
off at the new size by straight lines between pixels. Method: transformers' `Owlv2ImageProcessorPil`.
"""

import numpy as np
from PIL import Image

LONGEST = 4096  # pixels; what is longer is shrunk to it first, or a strip would become a square of gigabytes


def resize(image: Image.Image, size: tuple[int, int], factor: float) -> np.ndarray:
    """`size` is (height, width). Values times `factor`, float32, (height, width, 3)."""
    pixels = np.asarray(_shrunk(image))
    side = max(pixels.shape[:2])
    channels = [_channel(pixels[:, :, index].astype(np.float32) * np.float32(factor), side, size) for index in range(3)]
    return np.stack(channels, -1)


def _channel(values: np.ndarray, side: int, size: tuple[int, int]) -> np.ndarray:
    """One at a time, so that only a third of the square is held."""
    from scipy import ndimage

    height, width = values.shape
    square = np.pad(values, ((0, side - height), (0, side - width)))
    factors = np.divide(square.shape, size)
    blurred = ndimage.gaussian_filter(square, np.maximum(0, (factors - 1) / 2), mode="mirror")
    zoomed = ndimage.zoom(blurred, 1 / factors, order=1, mode="mirror", grid_mode=True)
    return np.asarray(np.clip(zoomed, square.min(), square.max()))


def _shrunk(image: Image.Image) -> Image.Image:
    longer = max(image.size)
    if longer <= LONGEST:
        return image
    width, height = (max(1, round(side * LONGEST / longer)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX)
