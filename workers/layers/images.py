"""Bytes that claim to be an image to upright RGB pixels, or a typed error that names the image. No torch.

The header is read and checked before a pixel is decoded, so that a small file cannot take the worker's memory. The
format is told from the bytes; what the caller says of it is not trusted. Of an animation the first frame is read.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from protocol.errors import InputTooLong, InvalidInput

MAX_PIXELS = 50_000_000  # 150 MB as RGB
MAX_ASPECT = 100  # the longer side by the shorter: resizing by the shorter side must not make a giant of a strip
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

_MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
)
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DEEP_GREY = ("I", "I;16", "I;16L", "I;16B", "I;16N")


def sniff(data: bytes) -> str | None:
    """The name of the format, of FORMATS, that the first bytes are of."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    return next((name for magic, name in _MAGIC if data.startswith(magic)), None)


def size(data: bytes, where: str) -> tuple[int, int]:
    """Width and height as stored, from the header alone. Raises InvalidInput, InputTooLong."""
    with _opened(data, where) as image:
        return image.size


def read(data: bytes, where: str) -> Image.Image:
    """Upright, RGB, alpha over white. Raises InvalidInput, InputTooLong."""
    with _opened(data, where) as image:
        try:
            image.load()
            turned = _upright(image)
            return _rgb(turned, where)
        except InvalidInput:
            raise
        except Exception as error:  # decoders over damaged bytes raise of every kind
            raise _unreadable(where) from error


def only(item: Mapping[str, Any], model: str) -> bytes:
    """The bytes of an item's one image. Raises InvalidInput for none, and for several."""
    found: Sequence[Mapping[str, Any]] = item.get("images") or ()
    if len(found) != 1:
        raise InvalidInput(f"model {model!r} reads one image per item, not {len(found)}", param="images")
    data: bytes = found[0]["data"]
    return data


def _opened(data: bytes, where: str) -> Image.Image:
    name = sniff(data)
    if name is None:
        allowed = ", ".join(FORMATS).lower()
        raise InvalidInput(f"{where} is not an image that is read; there are: {allowed}", param=where)
    try:
        image = Image.open(io.BytesIO(data), formats=[name])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(where, "far too many") from error
    except Exception as error:  # as above
        raise _unreadable(where) from error
    width, height = image.size
    _check_size(width, height, where)
    return image


def _check_size(width: int, height: int, where: str) -> None:
    if width < 1 or height < 1:
        raise InvalidInput(f"{where} has no pixels", param=where)
    if width * height > MAX_PIXELS:
        raise _too_large(where, f"{width} x {height}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        wrong = f"{where} is {width} x {height} pixels; one side may be {MAX_ASPECT} times the other"
        raise InvalidInput(wrong, param=where)


def _too_large(where: str, found: str) -> InputTooLong:
    wrong = f"{where} has {found} pixels; at most {MAX_PIXELS} are read"
    return InputTooLong(wrong, param=where, extra={"limit": MAX_PIXELS})


def _unreadable(where: str) -> InvalidInput:
    return InvalidInput(f"{where} could not be read as an image: it is damaged or cut short", param=where)


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF says; a tag that means nothing counts as none."""
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # metadata in ruins do not spoil the pixels
        return image
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image, where: str) -> Image.Image:
    if image.mode in _DEEP_GREY:
        return _eight_bits(image, where).convert("RGB")
    if image.mode == "F":
        raise InvalidInput(f"{where} has fractions for pixels, which are not read", param=where)
    if image.has_transparency_data:
        pixels = image.convert("RGBA")
        paper = Image.new("RGBA", pixels.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, pixels).convert("RGB")
    return image.copy() if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(image: Image.Image, where: str) -> Image.Image:
    """Grey of 16 bits; Pillow's own conversion would cut off what is above 255."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise InvalidInput(f"{where} has more than 16 bits per pixel, which are not read", param=where)
    return Image.fromarray((values >> 8).astype(np.uint8))
