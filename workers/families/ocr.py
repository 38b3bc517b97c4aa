"""OCR: the lines of images and of rendered PDF pages, by RapidOCR with the weights of its own package.

Images cross to the engine as they came and are decoded there. Boxes are in pixels of the upright image; those of a
PDF's page in points from its upper left corner. It runs on the CPU. An entry needs no source and has no load options.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, ShoalError, from_wire
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import documents, images, lines

OPTIONS = frozenset({"threshold", "pages"})
THRESHOLD = 0.5  # the library's own
MAX_PAGES = 100  # of one item
LABEL = "line"

_LONGEST_SIDE = 2000  # to which the library shrinks what is larger
_PIXELS_PER_COST = 1024
_PAGE_COST = _LONGEST_SIDE * 1414 // _PIXELS_PER_COST


class OcrPreparer:
    """Images and PDFs in, lines out."""

    def __init__(self, spec: ModelSpec) -> None:
        self._model = spec.model
        lines.weights(spec)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        return [self._prepare(item, wanted) for item in payload.items]

    def _prepare(self, item: Mapping[str, Any], wanted: ExtractOptions) -> Parts | ShoalError:
        given = item.get("images") or ()
        try:
            if not given and "document" not in item:
                raise InvalidInput(f"model {self._model!r} reads images and PDFs", param="images")
            parts = [self._image(image["data"], f"images[{index}]", index) for index, image in enumerate(given)]
            return [*parts, *(self._pages(item["document"], wanted.pages) if "document" in item else ())]
        except ShoalError as error:
            return error

    def _image(self, data: bytes, where: str, index: int) -> Prepared:
        width, height = images.size(data, where)
        shrink = min(1.0, _LONGEST_SIDE / max(width, height))
        cost = max(1, round(width * height * shrink**2 / _PIXELS_PER_COST))
        return Prepared({"image": data, "where": where}, cost, units={"images": 1}, about={"image": index})

    def _pages(self, raw: Mapping[str, Any], wanted: tuple[int, int] | None) -> Parts:
        document = documents.read(raw)
        if document.format != "pdf":
            wrong = f"document is {document.format}; model {self._model!r} reads images and PDFs"
            raise InvalidInput(wrong, param="document")
        first, last = documents.page_range(document, wanted)
        documents.check_count(last - first + 1, MAX_PAGES)
        damaged = documents.inspect(document.data, first, last)
        return [
            Prepared(
                {
                    "page": documents.single_page(document.data, number),
                    "number": number,
                    "is_damaged": number in damaged,
                },
                _PAGE_COST,
                units={"pages": 1},
                about={"page": number},
            )
            for number in range(first, last + 1)
        ]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        """Every line says of which image it is where there are several, and of which page.

        Pages that could not be read, or not whole, are named, never left out in silence.
        """
        threshold = ExtractOptions.from_wire(options).threshold
        least = THRESHOLD if threshold is None else threshold
        entities: list[dict[str, Any]] = []
        texts = []
        failed = _failed_pages(outputs, parts)
        for output, part in zip(outputs, parts, strict=True):
            if "error" in output:
                continue
            sure = [line for line in output["lines"] if line["score"] >= least]
            place = {} if len(parts) == 1 and "image" in part.about else part.about
            entities += [{**line, "label": LABEL, **place} for line in sure]
            texts.append(lines.text_of(sure))
        data: dict[str, Any] = {"text": "\n\n".join(texts)}
        return {"entities": entities, "data": {**data, "failed_pages": failed} if failed else data}


def _failed_pages(outputs: Sequence[Mapping[str, Any]], parts: Parts) -> list[int]:
    """Raises the error of an image, and that of a page where none could be read."""
    errors = [(part.about, output["error"]) for output, part in zip(outputs, parts, strict=True) if "error" in output]
    for about, error in errors:
        if "page" not in about or len(errors) == len(parts):
            raise from_wire(error)
    damaged = [part.about["page"] for part in parts if part.inputs.get("is_damaged")]
    return sorted({*damaged, *(about["page"] for about, _ in errors)})


class LoadedOcr:
    """The networks; called by one thread at a time."""

    packed = True  # every image is read by itself

    def __init__(self, spec: ModelSpec, device: str) -> None:
        self._reader = lines.LineReader(spec)
        self.bytes = lines.bytes_of(spec, device)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        return [self._read(inputs) for inputs in batch]

    def _read(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            if "page" in inputs:
                return {"lines": self._page(inputs["page"], inputs["number"])}
            image = images.read(inputs["image"], inputs["where"])
        except InvalidInput as error:
            return {"error": error.to_wire()}
        return {"lines": self._reader.read(np.asarray(image))}

    def _page(self, data: bytes, number: int) -> list[dict[str, Any]]:
        page, points_per_pixel = documents.render(data, 1, f"document page {number}")
        found = self._reader.read(np.asarray(page))
        return [{**line, "bbox": [side * points_per_pixel for side in line["bbox"]]} for line in found]

    def facts(self) -> Mapping[str, Any]:
        return {"architecture": "PP-OCRv6 small", "dtype": "float32", "runs_on": "cpu"}


def warm() -> None:
    import rapidocr  # noqa: F401  # and with it onnxruntime and OpenCV


def preparer(spec: ModelSpec, folder: Path | None) -> OcrPreparer:
    return OcrPreparer(spec)


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return lines.bytes_of(spec, device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> LoadedOcr:
    model = LoadedOcr(spec, device)
    report(1.0)
    return model
