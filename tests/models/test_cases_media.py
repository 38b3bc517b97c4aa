"""Section D of the cases: images and documents that are damaged, turned, odd or hostile, as models read them."""

import html
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import pypdfium2
import pytest
from PIL import Image

from protocol.messages import Payload
from tests.models import made_documents as made
from tests.models import test_image_encoder, test_images, test_ocr
from tests.models.test_docling import SPEC as DOCLING
from tests.models.test_docling import document
from tests.models.test_ocr import item, picture
from workers.families.alone import Alone
from workers.layers import documents, images

pytestmark = pytest.mark.timeout(900)  # on two cores that others use too, the networks take their time

MIB = 1 << 20
SIDE = 50_000  # as RGB that square is 7 GiB
SLIP = ["INVOICE 4821", "LEFT -> RIGHT 73"]
KINDS: Mapping[str, Mapping[str, Any]] = {"PNG": {}, "JPEG": {"quality": 98}, "WEBP": {"lossless": True}}
SMALL = (340, 150)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    case = test_image_encoder.TestClip
    folder = tmp_path_factory.mktemp("clip")
    return Alone(case.make(folder), folder)


@pytest.fixture(scope="module")
def ocr() -> Alone:
    return Alone(test_ocr.SPEC, None)


@pytest.fixture(scope="module")
def docling() -> Alone:
    return Alone(DOCLING, None)


def embedded(clip: Alone, files: Sequence[bytes]) -> np.ndarray:
    results = clip.run(Payload([item(data) for data in files]))
    return np.stack([result["dense"]["values"] for result in results])


def test_images_that_cannot_be_read_are_named_and_the_others_answered(clip: Alone) -> None:
    """S041: with the place of each; that the label is not trusted `test_images` holds, and `bad_item` every family."""
    good = item(test_images.encoded(test_images.circle()))
    broken = [item(data) for data in test_images.BROKEN.values()]

    first, *errors, last = clip.run(Payload([good, *broken, good]))

    assert [(found["error"]["code"], found["error"]["param"]) for found in errors] == [
        ("INVALID_INPUT", f"items[{place}].images[0]") for place in range(1, len(broken) + 1)
    ]
    assert all("read" in found["error"]["message"] for found in errors)
    assert np.abs(first["dense"]["values"] - last["dense"]["values"]).max() < 1e-5


def test_a_wrong_label_is_not_trusted(clip: Alone) -> None:
    """S041: a PNG that is said to be a JPEG."""
    data = test_images.encoded(test_images.circle())
    said, plain = clip.run(Payload([{"images": [{"data": data, "format": "jpeg"}]}, item(data)]))
    assert np.abs(said["dense"]["values"] - plain["dense"]["values"]).max() < 1e-5


def test_the_smallest_image_is_read_and_a_strip_is_refused(clip: Alone) -> None:
    """S041: of a hundred times the other side at most."""
    sides = [(1, 1), (10_000, 1)]
    dot, strip = clip.run(Payload([item(test_images.encoded(Image.new("RGB", size))) for size in sides]))
    assert "dense" in dot
    assert "10000 x 1" in strip["error"]["message"]


def stored(upright: Image.Image, orientation: Any, kind: str) -> bytes:
    """As a camera that was turned stores it; what the tag says besides 2 to 8 turns nothing."""
    turned = upright
    for turn in test_images._STORED.get(orientation, ()):
        turned = turned.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return test_images.encoded(turned, kind, exif=exif, **KINDS[kind])


def assert_reads_alike(found: Mapping[str, Any], upright: Mapping[str, Any]) -> None:
    assert found["data"]["text"] == upright["data"]["text"]
    boxes = [[one["bbox"] for one in result["entities"]] for result in (found, upright)]
    assert np.abs(np.subtract(boxes[0], boxes[1])).max() < 4


@pytest.fixture(scope="module")
def upright(ocr: Alone) -> Mapping[str, Any]:
    [found] = ocr.run(Payload([item(test_images.encoded(picture(SLIP, SMALL)))]))
    assert found["data"]["text"].split("\n") == SLIP
    return dict(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_photo_is_read_as_it_is_meant_to_be_seen(ocr: Alone, upright: Mapping[str, Any], kind: str) -> None:
    """S042: held on either side and upside down; boxes are in the image as it is seen."""
    files = [stored(picture(SLIP, SMALL), orientation, kind) for orientation in (6, 3, 8)]
    for found in ocr.run(Payload([item(data) for data in files])):
        assert_reads_alike(found, upright)


@pytest.mark.parametrize("kind", KINDS)
def test_a_photos_vector_is_that_of_the_image_as_it_is_seen(clip: Alone, kind: str) -> None:
    """S042."""
    shown = test_images.circle()
    found = embedded(clip, [test_images.encoded(shown), *(stored(shown, turn, kind) for turn in (6, 3, 8))])
    assert (found @ found[0]).min() > 0.99


def test_every_orientation_reads_the_same(ocr: Alone, upright: Mapping[str, Any]) -> None:
    """S101: mirrored ones too."""
    files = [stored(picture(SLIP, SMALL), orientation, "PNG") for orientation in range(1, 9)]
    for found in ocr.run(Payload([item(data) for data in files])):
        assert_reads_alike(found, upright)


# An EXIF block of one tag, 0x0112, that holds the text "six"; and one of nothing that can be read
TEXT_FOR_A_TAG = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x02\x00\x04\x00\x00\x00six\x00" + bytes(4)
RUINS = b"Exif\x00\x00II*\x00\xff\xff\xff\xff\x00"


@pytest.mark.filterwarnings("default")  # Pillow warns of damaged EXIF
@pytest.mark.parametrize("tag", [0, 9, TEXT_FOR_A_TAG, RUINS], ids=["0", "9", "a text", "ruins"])
def test_a_tag_that_means_nothing_turns_nothing(clip: Alone, tag: Any) -> None:
    """S101: a number there is no turn for, a text, and EXIF in ruins."""
    shown = test_images.circle()
    odd = test_images.encoded(shown, exif=tag) if isinstance(tag, bytes) else stored(shown, tag, "PNG")
    found = embedded(clip, [test_images.encoded(shown), odd])
    assert np.abs(found[0] - found[1]).max() < 1e-5


@pytest.mark.parametrize("task", ["fast", "ocr"])
def test_pages_that_are_turned_read_as_they_are_shown(docling: Alone, task: str) -> None:
    """S101: text that is upright under the page's own /Rotate."""
    files = [made.pdf(SLIP, rotate=turn, size=SMALL) for turn in (0, 90, 180, 270)]
    found = docling.run(Payload([document(data) for data in files], {"task": task}))
    assert [text_of(result) for result in found] == [SLIP] * 4


def test_boxes_on_turned_pages_are_where_they_are_shown(ocr: Alone) -> None:
    """S101: in points from the upper left corner of the page as it is shown."""
    files = [made.pdf(SLIP, rotate=turn, size=SMALL) for turn in (0, 90, 180, 270)]
    straight, *turned = ocr.run(Payload([document(data) for data in files]))
    for found in turned:
        assert_reads_alike(found, straight)


def test_every_colour_mode_has_the_vector_of_the_rgb_image(clip: Alone) -> None:
    """S043: CMYK is not inverted, what is transparent is paper; grey and one bit have no colour to compare."""
    rgb = test_images.encoded(test_images.circle(), "JPEG", quality=95)
    coloured = [data for data, middle in test_images.MODES.values() if middle == test_images.RED]
    grey = [data for data, middle in test_images.MODES.values() if middle != test_images.RED]

    found = embedded(clip, [rgb, *coloured])

    assert len(coloured) >= 3
    assert (found @ found[0]).min() > 0.98
    assert np.isfinite(embedded(clip, grey)).all()


class Watch:
    """The seconds of CPU that its thread took while this was open, which nobody else adds to, and the most memory."""

    def __enter__(self) -> "Watch":
        self._process = psutil.Process()
        self._start = self._peak = self._process.memory_info().rss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        self._began = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.thread_time() - self._began
        self._ended.set()
        self._thread.join()
        self.grown = self._peak - self._start

    def _look(self) -> None:
        while not self._ended.wait(0.002):
            self._peak = max(self._peak, self._process.memory_info().rss)


@pytest.fixture(scope="module")
def zeros() -> bytes:
    """The rows of the square, without the byte that PNG puts before each."""
    press = zlib.compressobj(9)
    row = bytes(SIDE // 8)
    return b"".join(press.compress(row) for _ in range(SIDE)) + press.flush()


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("name", ["ocr", "clip"])
def test_images_of_too_many_pixels_are_refused_undecoded(request: pytest.FixtureRequest, name: str, count: int) -> None:
    """S044: one, and two hundred in one call."""
    model: Alone = request.getfixturevalue(name)
    bomb = item(test_images.bomb(SIDE))

    with Watch() as watch:
        found = model.run(Payload([bomb] * count))

    assert {(one["error"]["code"], one["error"]["limit"]) for one in found} == {("INPUT_TOO_LONG", images.MAX_PIXELS)}
    assert watch.seconds < 0.2
    assert watch.grown < 100 * MIB


@pytest.mark.parametrize("place", ["image", "mask", "pattern"])
@pytest.mark.parametrize(
    ("name", "options"), [("ocr", {}), ("docling", {"task": "fast"}), ("docling", {"task": "ocr"})]
)
def test_a_page_with_an_image_of_too_many_pixels_is_refused_undecoded(
    request: pytest.FixtureRequest, zeros: bytes, name: str, options: dict[str, Any], place: str
) -> None:
    """S044: wherever on the page it is used."""
    model: Alone = request.getfixturevalue(name)
    data = made.pdf_of_image(SIDE, zeros, place)

    with Watch() as watch:
        [found] = model.run(Payload([document(data)], options))

    assert (found["error"]["code"], found["error"]["reason"]) == ("INPUT_TOO_LONG", "document_too_large")
    assert "50000 x 50000 pixels on page 1" in found["error"]["message"]
    assert watch.seconds < 0.2
    assert watch.grown < 100 * MIB


PDF = made.pdf(SLIP, size=SMALL)
READERS = [("ocr", {}), ("docling", {"task": "fast"}), ("docling", {"task": "ocr"})]


def text_of(result: Mapping[str, Any]) -> list[str]:
    return html.unescape(result["data"].get("markdown") or result["data"].get("text")).split("\n\n")


@pytest.mark.parametrize(("name", "options"), READERS)
def test_a_document_that_cannot_be_read_says_why(
    request: pytest.FixtureRequest, name: str, options: dict[str, Any]
) -> None:
    """S045: it is encrypted (there is no field for a password), breaks off, is HTML, or has no page."""
    model: Alone = request.getfixturevalue(name)
    files = [made.pdf(SLIP, user=b"s"), PDF[: len(PDF) * 2 // 3], b"<!doctype html><p>hi", made.pdf([]), PDF]

    *refused, read = model.run(Payload([document(data, "pdf") for data in files], options))

    assert [found["error"]["reason"] for found in refused] == [
        "document_encrypted",
        "document_corrupt",
        "document_type_mismatch",
        "document_empty",
    ]
    assert not any(word in str(refused) for word in ("Traceback", "/tmp", ".py"))
    assert text_of(read) == SLIP


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "options"), READERS)
def test_a_document_that_only_its_owner_may_change_is_read(
    request: pytest.FixtureRequest, name: str, options: dict[str, Any], packed: bool
) -> None:
    """S045."""
    model: Alone = request.getfixturevalue(name)
    [found] = model.run(Payload([document(made.pdf(SLIP, owner=b"o", packed=packed, size=SMALL))], options))
    assert text_of(found) == SLIP


BOOK = [f"Page number {number}" for number in range(1, 31)]
NARROW = (340, 100)


def noise(content: bytes) -> bytes:
    return bytes(np.random.default_rng(17).integers(0, 256, len(content), np.uint8))


def cut(content: bytes) -> bytes:
    """Broken off in the middle; the rest is zeros."""
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


def book(spoil: Callable[[bytes], bytes], packed: bool) -> bytes:
    """Thirty pages, the content of the seventeenth damaged."""
    content = made.content(BOOK[16], NARROW)
    content = zlib.compress(content) if packed else content
    data = made.pdf(BOOK, size=NARROW, packed=packed)
    assert data.count(content) == 1
    return data.replace(content, spoil(content))


@pytest.mark.parametrize(("spoil", "packed"), [(noise, False), (cut, False), (noise, True), (cut, True)])
def test_a_damaged_page_is_named_and_the_others_are_read(
    docling: Alone, spoil: Callable[[bytes], bytes], packed: bool
) -> None:
    """S046: `failed_pages` says which, so that nothing vanishes in silence."""
    [found] = docling.run(Payload([document(book(spoil, packed))], {"task": "fast"}))
    assert found["data"]["failed_pages"] == [17]
    assert [line for line in text_of(found) if line] == BOOK[:16] + BOOK[17:]


@pytest.mark.parametrize(("name", "options"), [("ocr", {}), ("docling", {"task": "ocr"})])
def test_pages_keep_their_numbers_beside_a_damaged_one(
    request: pytest.FixtureRequest, name: str, options: dict[str, Any]
) -> None:
    """S046: where pages are rendered; fewer of them."""
    model: Alone = request.getfixturevalue(name)
    [found] = model.run(Payload([document(book(noise, True))], {**options, "pages": [15, 19]}))
    assert found["data"]["failed_pages"] == [17]
    assert [line for line in text_of(found) if line] == [BOOK[14], BOOK[15], BOOK[17], BOOK[18]]
    assert [one["page"] for one in found.get("entities", ())] in ([], [15, 16, 18, 19])


@pytest.mark.parametrize(("name", "options"), READERS)
def test_a_document_of_damaged_pages_alone_is_refused(
    request: pytest.FixtureRequest, name: str, options: dict[str, Any]
) -> None:
    """S046."""
    model: Alone = request.getfixturevalue(name)
    [found] = model.run(Payload([document(book(noise, True))], {**options, "pages": [17, 17]}))
    assert found["error"]["reason"] == "document_corrupt"


class Faulty(pypdfium2.PdfDocument):  # type: ignore[misc]  # an untyped library
    """A library that fails on pages 5 to 9."""

    def __getitem__(self, index: int) -> Any:
        if 4 <= index <= 8:
            raise pypdfium2.PdfiumError("Failed to load page.")
        return super().__getitem__(index)


def test_pages_that_a_library_fails_on_are_named(docling: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """S046."""
    monkeypatch.setattr(pypdfium2, "PdfDocument", Faulty)
    data = made.pdf(BOOK[:10], size=NARROW)

    [found] = docling.run(Payload([document(data)], {"task": "ocr"}))

    assert found["data"]["failed_pages"] == [5, 6, 7, 8, 9]
    assert text_of(found) == BOOK[:4] + BOOK[9:10]
    with pytest.raises(Exception, match="page 5 is damaged"):
        documents.render(data, 5, "page 5")
