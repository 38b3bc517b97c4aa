"""Docling on files made here: equal to the library alone, and nothing is fetched."""

import io
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import made_documents as made
from tests.models.contract import ExtractContract
from tests.models.test_ocr import INVOICE, picture, png
from workers.families import docling as family
from workers.families.alone import Alone

pytestmark = pytest.mark.timeout(900)  # importing docling alone may take half a minute

SPEC = ModelSpec("docling", "docling", ("extract",), inputs=("image", "document"), bundle="documents")
PDF = made.pdf(["one\ntwo", "three", "four"])
FILES = {
    "csv": b"a,b\n1,2\n",
    "md": b"# Title\n\nHello *you*\n\n" + b"A line.\n" * 500,
    "html": b"<!doctype html><h1>Title</h1><table><tr><td>1</td><td>2</td></tr></table>" + b"<p>Hello</p>" * 500,
    "xlsx": made.xlsx([["name", "count"], *([f"row {n}", n * 7919 % 9973] for n in range(250))]),
}


def document(data: bytes, kind: str | None = None) -> dict[str, Any]:
    return {"document": {"data": data, "format": kind} if kind else {"data": data}}


@pytest.fixture(scope="module")
def converter() -> Alone:
    return Alone(SPEC, None)


class TestDocling(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        return SPEC

    @classmethod
    def payload(cls) -> Payload:
        return Payload([document(FILES[kind], kind) for kind in FILES] + [document(PDF, "pdf")], {"task": "fast"})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        from docling.datamodel.base_models import DocumentStream, InputFormat
        from docling.document_converter import DocumentConverter, NativePdfFormatOption

        library = DocumentConverter(format_options={InputFormat.PDF: NativePdfFormatOption()})
        results: list[Mapping[str, Any]] = []
        for item, pages in zip(payload.items, (1, 1, 1, 1, 3), strict=True):
            data, kind = item["document"]["data"], item["document"]["format"]
            found = library.convert(DocumentStream(name=f"x.{kind}", stream=io.BytesIO(data)))
            results.append({"data": {"markdown": found.document.export_to_markdown(), "pages": pages}})
        return results

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return document(PDF[:100], "pdf")


@pytest.mark.parametrize(
    ("data", "markdown", "pages"),
    [
        (made.docx(["Hello", "World"]), "## A heading\n\nHello\n\nWorld", 1),
        (made.pptx(["First", "Second"]), "# First\n\n# Second", 2),
        (b"plain words", "plain words", 1),
    ],
)
def test_office_files_and_texts_need_no_weights(converter: Alone, data: bytes, markdown: str, pages: int) -> None:
    [result] = converter.run(Payload([document(data)]))
    assert result["data"] == {"markdown": markdown, "pages": pages}
    assert result["pages"] == pages


def test_of_a_pdf_the_pages_asked_for_are_read(converter: Alone) -> None:
    [result] = converter.run(Payload([document(PDF)], {"task": "fast", "pages": [2, 3]}))
    assert result["data"] == {"markdown": "three\n\nfour", "pages": 2}


def test_ocr_reads_pages_and_images_line_by_line(converter: Alone) -> None:
    items = [document(made.pdf(["Total due 42"])), {"images": [{"data": png(picture(INVOICE))}]}]
    page, image = converter.run(Payload(items, {"task": "ocr"}))
    assert page["data"]["markdown"] == "Total due 42"
    assert image["data"]["markdown"].split("\n") == INVOICE


def test_without_its_weights_the_layout_task_fails_typed_and_others_go_on(converter: Alone) -> None:
    pdf, text = converter.run(Payload([document(PDF), document(b"words")]))
    assert pdf["error"]["code"] == "MODEL_LOAD_FAILED"
    assert "'fast' or 'ocr'" in pdf["error"]["message"]
    assert text["data"]["markdown"] == "words"


@pytest.fixture
def visits() -> Iterator[tuple[int, list[Any]]]:
    """A port, and who connected to it."""
    seen: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    connection, address = server.accept()
                except OSError:
                    return
                seen.append(address)
                connection.close()

        threading.Thread(target=listen, daemon=True).start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)


def test_nothing_that_a_document_points_at_is_fetched(converter: Alone, visits: tuple[int, list[Any]]) -> None:
    port, seen = visits
    url = f"http://127.0.0.1:{port}/a.png"
    html = f"<!doctype html><link rel=stylesheet href='{url}'><img src='{url}'><img src='file:///etc/hostname'>ok"
    markdown = f"ok ![a]({url}) <img src='{url}'>"

    results = converter.run(Payload([document(html.encode(), "html"), document(markdown.encode(), "md")]))

    assert all("ok" in result["data"]["markdown"] for result in results)
    assert seen == []


@pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")  # the alarm may hit a finalizer
def test_a_document_that_takes_too_long_is_refused_alone(converter: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = b"a,b\n" + b"1,2\n" * 300_000
    monkeypatch.setattr(family, "TIMEOUT_S", 0.5)
    slow, quick = converter.run(Payload([document(rows, "csv"), document(b"words", "md")]))
    assert slow["error"]["reason"] == "document_timeout"
    assert quick["data"]["markdown"] == "words"


@pytest.mark.parametrize(
    "data",
    [made.zip_bomb(), made.pdf(["x"], user=b"s"), made.archive({made.TYPES: b"<", "word/document.xml": b"<w"})],
)
def test_hostile_files_are_typed_errors(converter: Alone, data: bytes) -> None:
    """S045: with a reason each."""
    [result] = converter.run(Payload([document(data)], {"task": "fast"}))
    assert result["error"]["code"] in ("INVALID_INPUT", "INPUT_TOO_LONG")
    assert result["error"]["reason"].startswith("document_")
