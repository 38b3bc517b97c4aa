"""Documents that are odd, damaged or hostile."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from protocol.errors import InputTooLong, InvalidInput
from tests.models import made_documents as made
from workers.layers import documents

PDF = made.pdf(["one", "two", "three"])
DOCX = made.docx(["hello"])
GOOD = {
    "pdf": PDF,
    "docx": DOCX,
    "pptx": made.pptx(["slide"]),
    "xlsx": made.xlsx([[1, 2], [3, 4]]),
    "html": b"\xef\xbb\xbf <!DOCTYPE html><p>hi",
    "txt": "grüße".encode(),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_kind_is_told_from_the_bytes(kind: str) -> None:
    assert documents.read({"data": GOOD[kind]}).format == kind


@pytest.mark.parametrize("kind", ["md", "csv", "txt", "html"])
def test_of_texts_the_caller_knows_the_kind(kind: str) -> None:
    assert documents.read({"data": b"a,b\n1,2", "format": kind}).format == kind


def test_a_pdf_is_known_with_its_pages() -> None:
    assert documents.read({"data": PDF, "format": "pdf"}).pages == 3


def test_slides_and_sheets_count_as_pages() -> None:
    assert documents.read({"data": made.pptx(["one", "two"])}).pages == 2
    assert documents.read({"data": GOOD["xlsx"]}).pages == 1


BAD = {
    "encrypted": (made.pdf(["one"], user=b"s"), "pdf", "document_encrypted"),
    "encrypted docx": (documents._OLE + bytes(600), "docx", "document_encrypted"),
    "cut short": (PDF[:120], "pdf", "document_corrupt"),
    "pdf of garbage": (b"%PDF-1.7\n" + bytes(range(256)) * 8, None, "document_corrupt"),
    "no pages": (made.pdf([]), "pdf", "document_empty"),
    "blank": (b" \n ", "txt", "document_empty"),
    "html called pdf": (b"<!doctype html><p>x", "pdf", "document_type_mismatch"),
    "docx called pptx": (DOCX, "pptx", "document_type_mismatch"),
    "pdf called docx": (PDF, "docx", "document_type_mismatch"),
    "half a docx": (DOCX[: len(DOCX) // 2], "docx", "document_corrupt"),
    "an archive": (made.archive({"a.txt": b"a"}), None, "document_type_unsupported"),
    "old word": (documents._OLE + bytes(600), "doc", "document_type_unsupported"),
    "rtf": (b"{\\rtf1 hello}", "rtf", "document_type_unsupported"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(99), None, "document_type_unsupported"),
    "pages without a page": (made.pdf([]), None, "document_empty"),
    "a program": (b"\x7fELF\x02\x01\x01\x00" + bytes(99), None, "document_type_unsupported"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_fault_has_its_reason(name: str) -> None:
    """S045: told apart, and none with a path or a trace."""
    data, said, reason = BAD[name]
    with pytest.raises(InvalidInput) as refused:
        documents.read({"data": data, "format": said} if said else {"data": data})
    assert refused.value.extra["reason"] == reason
    assert refused.value.param == "document"


LARGE = {
    "a zip bomb": (made.zip_bomb(), "unpacks to"),
    "an archive of many files": (made.archive({f"word/{n}": b"" for n in range(10_001)}), "more than 10000 files"),
    "a long text": (b"a" * (documents.MAX_TEXT_BYTES + 1), "as txt at most"),
    "a large file": (b"%PDF-" + bytes(documents.MAX_BYTES), "bytes; at most"),
    "too many pages": (made.pdf(["x"] * (documents.MAX_PAGES + 1)), "1001 pages"),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_refused_unopened(name: str) -> None:
    data, words = LARGE[name]
    with pytest.raises(InputTooLong, match=words) as refused:
        documents.read({"data": data})
    assert refused.value.extra["reason"] == "document_too_large"


@pytest.mark.parametrize(("wanted", "given"), [(None, (1, 3)), ((2, 2), (2, 2)), ((2, 99), (2, 3))])
def test_pages_are_those_the_document_has(wanted: tuple[int, int] | None, given: tuple[int, int]) -> None:
    assert documents.page_range(documents.read({"data": PDF}), wanted) == given


def test_a_page_behind_the_last_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no page 4"):
        documents.page_range(documents.read({"data": PDF}), (4, 5))


def test_one_page_can_be_taken_out() -> None:
    assert documents.count_pages(documents.single_page(PDF, 2)) == 1


def test_many_threads_count_what_one_does() -> None:
    """S047: PDFium takes one at a time."""
    files = [made.pdf(["x"] * count) for count in (1, 2, 3, 4)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(documents.count_pages, files * 25)) == [1, 2, 3, 4] * 25
