"""Bytes that claim to be a document, looked at before any library converts them: kind, size, pages, or a typed error.

The kind is told from the bytes; what the caller says must agree with them. Office files are archives: what they would
unpack to is read from their directory, so that a zip bomb is refused unopened. `extra["reason"]` of an error says
which fault it is. PDFium is not thread-safe, so all of this process's calls to it take turns.
"""

import contextlib
import io
import re
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from protocol.errors import InputTooLong, InvalidInput
from workers.layers import images, page_bytes

MAX_BYTES = 64 << 20
MAX_TEXT_BYTES = 8 << 20  # of html, md, csv, txt
MAX_PAGES = 1000  # of a PDF, read or not
MAX_UNPACKED_BYTES = 256 << 20  # of an office file
MAX_ENTRIES = 10_000  # files in an office file
RENDER_DPI = 200
MAX_RENDERED_SIDE = 3000  # pixels; posters come out coarser
TEXTS = ("html", "md", "csv", "txt")
OFFICE = ("docx", "pptx", "xlsx")
FORMATS = ("pdf", *OFFICE, *TEXTS)

ENCRYPTED, CORRUPT, MISMATCH, EMPTY = (
    "document_encrypted",
    "document_corrupt",
    "document_type_mismatch",
    "document_empty",
)
UNSUPPORTED, TOO_LARGE, NO_SUCH_PAGE = "document_type_unsupported", "document_too_large", "document_has_no_such_page"

_WHERE = "document"
_PDF_HEAD = 1024  # where readers look for its mark
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # office files of before 2007, and encrypted ones of today
_ROOTS = {"word/": "docx", "ppt/": "pptx", "xl/": "xlsx"}
_PARTS = {"pptx": re.compile(r"ppt/slides/[^/]+\.xml"), "xlsx": re.compile(r"xl/worksheets/[^/]+\.xml")}
_HTML_STARTS = (b"<!doctype html", b"<html", b"<head", b"<body")
_PASSWORD = 4  # PDFium's own number
_EMPTY_BYTES = 1 << 16  # that a file without pages may have
_SMALL_MAP = re.compile(rb"<<([^<>]{0,400})>>")
_PAGE_TREE, _NO_PAGES, _PARENT = (re.compile(said) for said in (rb"/Type\s*/Pages\b", rb"/Count\s+0\b", rb"/Parent\b"))
_pdfium = threading.Lock()


@dataclass(frozen=True, slots=True)
class Document:
    """One that is of a known kind and within all limits."""

    format: str
    data: bytes
    pages: int = 1  # or slides, or sheets; texts have one


def read(raw: Mapping[str, Any]) -> Document:
    """`raw` is an item's `document`. Raises InvalidInput, InputTooLong."""
    data: bytes = raw["data"]
    if len(data) > MAX_BYTES:
        raise _too_large(f"has {len(data)} bytes; at most {MAX_BYTES} are read")
    kind = _kind(data, raw.get("format"))
    if kind in OFFICE:
        _check_archive(data)
    if kind in TEXTS and len(data) > MAX_TEXT_BYTES:
        raise _too_large(f"has {len(data)} bytes; as {kind} at most {MAX_TEXT_BYTES} are read")
    return Document(kind, data, count_pages(data) if kind == "pdf" else _count_parts(kind, data))


def page_range(document: Document, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """First and last page to read of a PDF, from 1. Raises InvalidInput when it has no such page."""
    pages = document.pages
    if wanted is None:
        return 1, pages
    if wanted[0] > pages:
        raise _fault(NO_SUCH_PAGE, f"has {pages} pages; there is no page {wanted[0]}")
    return wanted[0], min(wanted[1], pages)


def count_pages(data: bytes) -> int:
    """Raises InvalidInput for a PDF that is encrypted, broken or empty, InputTooLong for one of too many pages."""
    with _pdfium:
        pdf = _opened(data)
        pages = len(pdf)
        pdf.close()
    if pages < 1:
        raise _fault(EMPTY, "has no pages")
    if pages > MAX_PAGES:
        raise _too_large(f"has {pages} pages; at most {MAX_PAGES} are read")
    return pages


def inspect(data: bytes, first: int, last: int) -> list[int]:
    """Numbers of the pages, of these of a PDF, that cannot be read whole because they are damaged.

    Raises InputTooLong for a page with an image of too many pixels: what decodes it would take all memory. Raises
    InvalidInput where all pages are damaged and show nothing.
    """
    with _pdfium:
        pdf = _opened(data)
    try:
        found = [_inspect(pdf, number) for number in range(first, last + 1)]
    finally:
        with _pdfium:
            pdf.close()
    if all(is_damaged and is_blank for is_damaged, is_blank in found):
        raise _fault(CORRUPT, "could not be read as a PDF: its pages are damaged")
    return [number for number, (is_damaged, _) in enumerate(found, first) if is_damaged]


def _inspect(pdf: Any, number: int) -> tuple[bool, bool]:
    """Whether a page is damaged, and whether it shows nothing."""
    import pypdfium2

    with _pdfium:
        try:
            page = pdf[number - 1]
            is_blank = pypdfium2.raw.FPDFPage_CountObjects(page.raw) == 0
            sizes = [one.get_px_size() for one in page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE])]
            alone = _single_page(pdf, number)
        except pypdfium2.PdfiumError:
            return True, True
    for width, height in [*sizes, *page_bytes.image_sizes(alone)]:
        if width * height > images.MAX_PIXELS:
            wrong = f"has an image of {width} x {height} pixels on page {number}; at most {images.MAX_PIXELS} are read"
            raise _too_large(wrong)
    return page_bytes.is_damaged(alone, is_blank), is_blank


def single_page(data: bytes, number: int) -> bytes:
    """A PDF of that page alone, `number` from 1: what an engine needs to render it."""
    import pypdfium2

    with _pdfium:
        whole = _opened(data)
        try:
            return _single_page(whole, number)
        except pypdfium2.PdfiumError as error:
            raise _fault(CORRUPT, f"could not be read as a PDF: page {number} is damaged") from error
        finally:
            whole.close()


def _single_page(whole: Any, number: int) -> bytes:
    """Raises PdfiumError; to be called under the lock."""
    import pypdfium2

    buffer = io.BytesIO()
    with contextlib.closing(pypdfium2.PdfDocument.new()) as page:
        page.import_pages(whole, [number - 1])
        page.save(buffer)
    return buffer.getvalue()


def render(data: bytes, number: int, where: str) -> tuple[Image.Image, float]:
    """That page as it is shown, RGB, and how many points one of its pixels is wide. Raises InvalidInput."""
    import pypdfium2

    with _pdfium:
        pdf = _opened(data)
        try:
            page = pdf[number - 1]
            width, height = page.get_size()
            scale = min(RENDER_DPI / 72, MAX_RENDERED_SIDE / max(width, height, 1.0))
            return page.render(scale=scale).to_pil().convert("RGB"), 1 / scale
        except (pypdfium2.PdfiumError, ValueError) as error:
            raise _fault(CORRUPT, f"could not be rendered: {where} is damaged") from error
        finally:
            pdf.close()


def check_count(pages: int, limit: int) -> None:
    """Raises InputTooLong when more pages are to be read than `limit`."""
    if pages > limit:
        raise _too_large(f"has {pages} pages to read; at most {limit} are read of one item, so ask for them by 'pages'")


def _opened(data: bytes) -> Any:
    import pypdfium2

    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD:
            raise _fault(ENCRYPTED, "is encrypted; send it without its password") from error
        if _has_no_pages(data):  # which PDFium takes for damage
            raise _fault(EMPTY, "has no pages") from error
        raise _fault(CORRUPT, "could not be read as a PDF: it is damaged or cut short") from error


def _has_no_pages(data: bytes) -> bool:
    """Whether the root of its tree of pages is empty, as far as a small file says so."""
    maps = (found[1] for found in _SMALL_MAP.finditer(data[:_EMPTY_BYTES]))
    return any(_PAGE_TREE.search(one) and _NO_PAGES.search(one) and not _PARENT.search(one) for one in maps)


def _kind(data: bytes, said: str | None) -> str:
    found = _sniffed(data)
    if found is None:
        return _kind_of_text(data, said)
    if found == "ole":
        if said in OFFICE:
            raise _fault(ENCRYPTED, f"is an encrypted {said}; send it without its password")
        raise _unsupported("a file of an office program of before 2007")
    if found not in FORMATS:
        raise _unsupported(found)
    if said in FORMATS and said != found:
        raise _fault(MISMATCH, f"is said to be {said} but is {found}")
    return found


def _sniffed(data: bytes) -> str | None:
    """None: a text, if anything."""
    if b"%PDF-" in data[:_PDF_HEAD]:
        return "pdf"
    if data.startswith(_OLE):
        return "ole"
    if data.startswith(b"PK\x03\x04"):
        return _office_kind(data)
    if images.sniff(data) is not None:
        return "an image; send it as images"
    return None


def _kind_of_text(data: bytes, said: str | None) -> str:
    looks_html = data[:_PDF_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_HTML_STARTS)
    if b"\x00" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unsupported("neither a text nor of a known kind")
    if not data.strip():
        raise _fault(EMPTY, "has nothing in it")
    if said in TEXTS:
        return said
    if said in FORMATS:
        raise _fault(MISMATCH, f"is said to be {said} but is {'html' if looks_html else 'a text'}")
    if said is not None:
        raise _unsupported(said)
    return "html" if looks_html else "txt"


def _office_kind(data: bytes) -> str:
    names = [entry.filename for entry in _entries(data)]
    kinds = {kind for root, kind in _ROOTS.items() if any(name.startswith(root) for name in names)}
    if len(kinds) != 1 or "[Content_Types].xml" not in names:
        return "an archive"
    return kinds.pop()


def _count_parts(kind: str, data: bytes) -> int:
    """Slides or sheets; what has neither counts as one page."""
    if kind not in _PARTS:
        return 1
    return max(1, sum(bool(_PARTS[kind].fullmatch(entry.filename)) for entry in _entries(data)))


def _check_archive(data: bytes) -> None:
    entries = _entries(data)
    if any(entry.flag_bits & 1 for entry in entries):
        raise _fault(ENCRYPTED, "is encrypted; send it without its password")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_UNPACKED_BYTES:
        raise _too_large(f"unpacks to {unpacked} bytes; at most {MAX_UNPACKED_BYTES} are read")


def _entries(data: bytes) -> list[zipfile.ZipInfo]:
    """What the archive's directory lists; readers unpack no more of an entry than is said there."""
    if data.count(b"PK\x01\x02") > MAX_ENTRIES:
        raise _too_large(f"is an archive of more than {MAX_ENTRIES} files")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise _fault(CORRUPT, "could not be read as an office file: it is damaged or cut short") from error


def _fault(reason: str, what: str) -> InvalidInput:
    return InvalidInput(f"{_WHERE} {what}", param=_WHERE, extra={"reason": reason})


def _too_large(what: str) -> InputTooLong:
    return InputTooLong(f"{_WHERE} {what}", param=_WHERE, extra={"reason": TOO_LARGE})


def _unsupported(what: str) -> InvalidInput:
    return _fault(UNSUPPORTED, f"is {what[:80]}, which is not read; there are: {', '.join(FORMATS)}")
