"""Images that are odd, damaged or hostile."""

import io
import struct
import time
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from protocol.errors import InputTooLong, InvalidInput
from workers.layers import images

RED, WHITE = (255, 0, 0), (255, 255, 255)


def circle(size: tuple[int, int] = (64, 48)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).ellipse((8, 8, 40, 40), fill="red")
    return image


def encoded(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def apart(image: Image.Image, place: tuple[int, int], colour: tuple[int, int, int]) -> int:
    """How far the pixel at `place` is from `colour`."""
    return int(np.abs(np.asarray(image, int)[place[1], place[0]] - colour).max())


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(side: int) -> bytes:
    """A PNG of nothing but zeros, one bit per pixel."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    press = zlib.compressobj(9)
    row = bytes(1 + side // 8)
    body = b"".join(press.compress(row) for _ in range(min(side, 200))) + press.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", images.FORMATS)
def test_every_format_is_read_by_its_bytes(kind: str) -> None:
    """S041: whatever the caller says of them."""
    read = images.read(encoded(circle(), kind), "images[0]")
    assert read.mode == "RGB"
    assert read.size == (64, 48)
    assert apart(read, (24, 24), RED) < 12


@pytest.mark.parametrize("side", [50_000, 20_000, 8_000])
def test_a_decompression_bomb_is_refused_by_its_header(side: int) -> None:
    """S044: unread."""
    data = bomb(side)
    started = time.perf_counter()
    with pytest.raises(InputTooLong, match=str(images.MAX_PIXELS)) as refused:
        images.read(data, "images[3]")
    assert refused.value.param == "images[3]"
    assert time.perf_counter() - started < 0.2


WHOLE_PNG = encoded(Image.effect_noise((64, 64), 90).convert("RGB"))
BROKEN = {
    "half a png": WHOLE_PNG[: len(WHOLE_PNG) // 2],
    "jpeg header, then zeros": encoded(circle(), "JPEG")[:20] + bytes(500),
    "jpeg cut short": encoded(circle(), "JPEG")[:400],
    "gif cut short": encoded(circle(), "GIF")[:30],
    "webp cut short": encoded(circle(), "WEBP")[:40],
    "tiff cut short": encoded(circle(), "TIFF")[:60],
    "bmp cut short": encoded(circle(), "BMP")[:100],
    "magic alone": b"\x89PNG\r\n\x1a\n",
    "a text": b"hello there",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "an eps, which Pillow would hand to Ghostscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "one byte": b"\x00",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_whole_image_is_a_typed_error_of_its_place(name: str) -> None:
    """S041: half a file, zeros, texts, drawings."""
    with pytest.raises(InvalidInput) as refused:
        images.read(BROKEN[name], "images[1]")
    assert refused.value.param == "images[1]"
    assert "images[1]" in refused.value.message


@pytest.mark.parametrize("sides", [(1, 1), (1, 100), (3000, 30)])
def test_small_and_long_images_are_read(sides: tuple[int, int]) -> None:
    """S041: down to one pixel."""
    assert images.read(encoded(Image.new("RGB", sides)), "images[0]").size == sides


@pytest.mark.parametrize("sides", [(10_000, 1), (1, 101), (5000, 49)])
def test_a_strip_is_refused(sides: tuple[int, int]) -> None:
    """S041: 10,000 x 1."""
    with pytest.raises(InvalidInput, match="times the other"):
        images.size(encoded(Image.new("RGB", sides)), "images[0]")


_STORED = {
    1: (),
    2: (Image.Transpose.FLIP_LEFT_RIGHT,),
    3: (Image.Transpose.ROTATE_180,),
    4: (Image.Transpose.FLIP_TOP_BOTTOM,),
    5: (Image.Transpose.TRANSPOSE,),
    6: (Image.Transpose.ROTATE_90,),
    7: (Image.Transpose.TRANSVERSE,),
    8: (Image.Transpose.ROTATE_270,),
}


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", _STORED)
def test_every_exif_orientation_comes_out_upright(orientation: int, kind: str) -> None:
    """S042, S101: pixel by pixel."""
    upright = stored = circle()
    for turn in _STORED[orientation]:
        stored = stored.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    settings = {"lossless": True} if kind == "WEBP" else {"quality": 98} if kind == "JPEG" else {}

    read = images.read(encoded(stored, kind, exif=exif, **settings), "images[0]")

    assert read.size == upright.size
    assert np.abs(np.asarray(read, int) - np.asarray(upright, int)).mean() < 4


@pytest.mark.parametrize("orientation", [0, 9])
def test_an_orientation_that_means_nothing_is_none(orientation: int) -> None:
    """S101: 0 and 9."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert images.read(encoded(circle(), exif=exif), "images[0]").size == (64, 48)


@pytest.mark.filterwarnings("default")  # Pillow warns of it
def test_exif_in_ruins_does_not_spoil_the_pixels() -> None:
    """S101: nor turns them."""
    data = encoded(circle(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff\x00")
    assert images.read(data, "images[0]").size == (64, 48)


def _with_alpha() -> Image.Image:
    image = circle().convert("RGBA")
    image.putalpha(Image.eval(image.getchannel("G"), lambda green: 255 - green))
    return image


MODES = {
    "cmyk jpeg": (encoded(circle().convert("CMYK"), "JPEG", quality=95), RED),
    "palette": (encoded(circle().convert("P")), RED),
    "palette with a transparent colour": (encoded(circle().quantize(4), transparency=0), None),
    "alpha": (encoded(_with_alpha()), RED),
    "grey": (encoded(circle().convert("L")), (76, 76, 76)),
    "grey and alpha": (encoded(circle().convert("LA")), (76, 76, 76)),
    "one bit": (encoded(circle().convert("L").point(lambda v: 255 * (v > 200)).convert("1")), (0, 0, 0)),
    "16 bits": (encoded(Image.fromarray(np.asarray(circle().convert("L")).astype(np.uint16) * 257)), (76, 76, 76)),
}


@pytest.mark.parametrize("name", MODES)
def test_every_colour_mode_becomes_rgb_on_white(name: str) -> None:
    """S043: CMYK is not inverted."""
    data, middle = MODES[name]
    read = images.read(data, "images[0]")
    assert read.mode == "RGB"
    assert apart(read, (2, 2), WHITE) < 12
    assert middle is None or apart(read, (24, 24), middle) < 12


def test_numbers_of_32_bits_are_refused() -> None:
    data = encoded(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "TIFF")
    with pytest.raises(InvalidInput, match="fractions"):
        images.read(data, "images[0]")


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_its_first_frame(kind: str) -> None:
    """S041: of GIF, WebP and PNG."""
    other = Image.new("RGB", (64, 48), "blue")
    read = images.read(encoded(circle(), kind, save_all=True, append_images=[other]), "images[0]")
    assert apart(read, (24, 24), RED) < 12


@pytest.mark.parametrize("item", [{"text": "none"}, {"images": [{"data": b"a"}, {"data": b"b"}]}])
def test_a_model_of_one_image_refuses_none_and_several(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="one image per item"):
        images.only(item, "org/m")
