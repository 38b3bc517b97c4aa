"""What PDFium does not say of a page: whether its content is whole, and which images it hides."""

import time
import zlib

import pytest

from tests.models import made_documents as made
from workers.layers import documents, page_bytes

SIZE = (300, 100)
TEXT = made.content("A page", SIZE)


def page(content: bytes, packed: bool) -> bytes:
    """A page that draws `content` in place of its text, as PDFium writes it."""
    data = made.pdf(["A page"], size=SIZE, packed=packed)
    own = zlib.compress(TEXT) if packed else TEXT
    length, dictionary = b"/Length %d" % len(own), b"/Filter /FlateDecode " if packed else b" "
    assert data.count(b"%s%s >>\nstream\n%s" % (dictionary, length, own)) == 1
    return documents.single_page(data.replace(own, content + bytes(len(own) - len(content))), 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_page_that_is_whole_is_not_damaged(packed: bool) -> None:
    whole = zlib.compress(TEXT) if packed else TEXT
    assert not page_bytes.is_damaged(page(whole, packed), shows_nothing=False)


BLANK = [
    b"",
    b" \n",
    b"q Q",
    b"q 0 0 9 9 re W n Q",
    b"/A <</B [/C]>> BDC EMC",
    b"BT /F1 9 Tf () Tj <20> Tj ET",
    b"% (a",
]


@pytest.mark.parametrize("content", BLANK)
def test_content_that_shows_nothing_is_a_blank_page(content: bytes) -> None:
    assert not page_bytes.is_damaged(page(content, False), shows_nothing=True)


@pytest.mark.parametrize("content", [b"\xff\x80\x03", b"BT /F1 9 Tf (half", b"BT 40 50", b"no operators", b"q q q x y"])
def test_what_is_no_content_is_damage(content: bytes) -> None:
    assert page_bytes.is_damaged(page(content, False), shows_nothing=True)


@pytest.mark.parametrize("cut", [0, 2, 8, 20])
def test_packed_content_that_breaks_off_is_damage_whatever_is_shown(cut: int) -> None:
    assert page_bytes.is_damaged(page(zlib.compress(TEXT)[:cut], True), shows_nothing=False)


def test_the_sum_at_the_end_of_packed_content_is_not_asked_for() -> None:
    assert not page_bytes.is_damaged(page(zlib.compress(TEXT)[:-4], True), shows_nothing=False)


@pytest.mark.parametrize("place", ["image", "mask", "pattern"])
def test_images_are_seen_wherever_they_are(place: str) -> None:
    found = list(page_bytes.image_sizes(documents.single_page(made.pdf_of_image(500, zlib.compress(b"\0"), place), 1)))
    assert (500, 500) in found


def test_content_in_several_streams_is_read_as_one() -> None:
    """Named by a list of its own, as some writers do."""
    halves = [TEXT[: len(TEXT) // 2], TEXT[len(TEXT) // 2 :]]
    listed = made.pdf_of_contents(halves)
    assert not page_bytes.is_damaged(documents.single_page(listed, 1), shows_nothing=True)
    assert page_bytes.is_damaged(documents.single_page(made.pdf_of_contents([*halves, b"\xff"]), 1), shows_nothing=True)


@pytest.mark.parametrize("unit", [b"1 0 obj\r\n<<", b"xref\r\n", b"(" * 9, b"<0", b"/Contents[", b"0 1 2 ", b"\\("])
def test_content_that_looks_like_a_file_costs_no_more_than_any(unit: bytes) -> None:
    data = documents.single_page(made.pdf_of_contents([unit * (1 << 20)]), 1)
    started = time.thread_time()
    page_bytes.is_damaged(data, shows_nothing=True)
    list(page_bytes.image_sizes(data))
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("data", [b"", b"startxref", b"xref\r\n0 1\r\nstartxref\r\n0", b"xref\r\ntrailer startxref"])
def test_bytes_of_no_file_say_nothing(data: bytes) -> None:
    assert not page_bytes.is_damaged(data, shows_nothing=True)
    assert list(page_bytes.image_sizes(data)) == []
