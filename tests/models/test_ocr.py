"""RapidOCR's real weights: equal to the library alone, and right on what can be read."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import made_documents
from tests.models.contract import ExtractContract
from workers.families.alone import Alone
from workers.layers import lines

pytestmark = pytest.mark.timeout(900)  # on two cores that others use too, the networks take their time

SPEC = ModelSpec("org/ocr", "ocr", ("extract",), inputs=("image", "document"))
INVOICE = ["INVOICE 4821", "Acme Robotics Ltd.", "Widget 3 x 12.50", "Total due: 413.97 USD"]


def picture(texts: list[str], size: tuple[int, int] = (640, 320)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for row, text in enumerate(texts):
        draw.text((30, 24 + 60 * row), text, fill="black", font=ImageFont.load_default(32))
    return image


def png(image: Image.Image, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.convert("L").save(buffer, "PNG", optimize=True, **settings)
    return buffer.getvalue()


def item(*files: bytes) -> dict[str, Any]:
    return {"images": [{"data": data} for data in files]}


@pytest.fixture(scope="module")
def ocr() -> Alone:
    return Alone(SPEC, None)


class TestOcr(ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        return SPEC

    @classmethod
    def payload(cls) -> Payload:
        sizes = [(200, 90), (320, 150), (480, 210), (560, 270), (640, 320)]
        return Payload([item(png(picture(INVOICE[:count], size))) for count, size in enumerate(sizes)])

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        from rapidocr import RapidOCR

        paths = {f"{name.title()}.model_path": str(path) for name, path in lines.weights(SPEC).items()}
        one_thread = {"EngineConfig.onnxruntime.intra_op_num_threads": 1}
        engine: Any = RapidOCR(params={**paths, **one_thread})
        return [_result(engine(one["images"][0]["data"])) for one in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return item(png(picture(INVOICE))[:900])


def _result(found: Any) -> Mapping[str, Any]:
    entities = []
    texts = found.txts or ()
    for text, score, corners in zip(texts, found.scores or (), found.boxes if texts else (), strict=True):
        box = [*np.min(corners, 0).tolist(), *np.max(corners, 0).tolist()]
        entities.append({"text": text, "label": "line", "score": float(score), "bbox": box})
    return {"entities": entities, "data": {"text": "\n".join(texts)}}


def text_of(result: Mapping[str, Any]) -> list[str]:
    return str(result["data"]["text"]).split("\n")


def test_a_rendered_invoice_reads_exactly(ocr: Alone) -> None:
    [result] = ocr.run(Payload([item(png(picture(INVOICE)))]))
    assert text_of(result) == INVOICE
    assert all(entity["score"] > 0.9 for entity in result["entities"])
    assert result["images"] == 1


@pytest.mark.parametrize(("orientation", "turn"), [(3, "ROTATE_180"), (6, "ROTATE_90"), (8, "ROTATE_270")])
def test_a_photo_that_lies_on_its_side_reads_the_same(ocr: Alone, orientation: int, turn: str) -> None:
    """S042: boxes too."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = picture(INVOICE).transpose(Image.Transpose[turn])
    upright, turned = ocr.run(Payload([item(png(picture(INVOICE))), item(png(stored, exif=exif))]))
    assert upright["entities"] == turned["entities"]


def test_a_pdf_is_read_page_by_page_in_points(ocr: Alone) -> None:
    document = {"data": made_documents.pdf(["First page", "Second page", "Third page"]), "format": "pdf"}
    [result] = ocr.run(Payload([{"document": document}], {"pages": [2, 3]}))
    assert [(one["text"], one["page"]) for one in result["entities"]] == [("Second page", 2), ("Third page", 3)]
    assert result["data"]["text"] == "Second page\n\nThird page"
    assert result["pages"] == 2
    assert result["entities"][0]["bbox"] == pytest.approx([60, 78, 200, 106], abs=12)


def test_several_images_of_an_item_say_which(ocr: Alone) -> None:
    [result] = ocr.run(Payload([item(png(picture(["Left side"])), png(picture(["Right side"])))]))
    assert [(one["text"], one["image"]) for one in result["entities"]] == [("Left side", 0), ("Right side", 1)]


def test_lines_that_are_too_unsure_are_left_out(ocr: Alone) -> None:
    payload = Payload([item(png(picture(INVOICE)))], {"threshold": 1.0})
    assert ocr.run(payload)[0]["entities"] == []


def test_an_image_that_breaks_off_fails_alone(ocr: Alone) -> None:
    """S034, S041: with the place of the image."""
    whole = png(picture(INVOICE))
    bad, good = ocr.run(Payload([item(whole, whole[:900]), item(whole)]))
    assert bad["error"]["param"] == "items[0].images[1]"
    assert text_of(good) == INVOICE


@pytest.mark.parametrize("document", [b"a text", made_documents.pdf(["x"], user=b"s"), made_documents.pdf(["x"] * 101)])
def test_documents_that_it_does_not_read_are_refused(ocr: Alone, document: bytes) -> None:
    [result] = ocr.run(Payload([{"document": {"data": document}}]))
    assert result["error"]["code"] in ("INVALID_INPUT", "INPUT_TOO_LONG")
    assert result["error"]["param"] == "items[0].document"
