"""Docling: documents as Markdown. Office files, HTML, Markdown and CSV need no weights; how PDFs are read `task` says.

    fast     the text layer as it stands, without headings, order or tables
    ocr      every page rendered and read line by line, as the family `ocr` reads images; images too
    layout   docling's own pipeline with layout, tables and OCR; the default, and it needs docling's weights

Nothing is downloaded, and nothing that a document points at is fetched. Load options (`load:` of the entry), optional:

    artifacts_folder    folder with docling's weights, as docling lays them out
    artifacts_repo      hub id of such a folder, looked for in the Hugging Face cache of this machine alone
    artifacts_revision  its commit

A document whose conversion takes longer than TIMEOUT_S is refused.
"""

import io
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InputTooLong, InvalidInput, ShoalError, from_wire
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import documents, images, lines
from workers.weights.failures import NOT_FOUND, UNSUPPORTED, load_failed

OPTIONS = frozenset({"task", "pages"})
FAST, OCR, LAYOUT = TASKS = ("fast", "ocr", "layout")
TIMEOUT_S = 90.0  # below SHOAL_HANG_S, at which the whole engine would be replaced
MAX_PAGES = 200  # of one item

_LOAD_OPTIONS = ("artifacts_folder", "artifacts_repo", "artifacts_revision")
_LAYOUT_FOLDER = "docling-project--docling-layout-heron"
_TABLES_FOLDER = "docling-project--docling-models"
_RING_AGAIN_S = 0.2
_BYTES_PER_COST = 4096
_PAGE_COST = {FAST: 64, OCR: 2761, LAYOUT: 4096}


class _TimeUp(BaseException):
    """Not an Exception: libraries that catch those must not swallow it."""


class DoclingPreparer:
    """Documents in, Markdown out."""

    def __init__(self, spec: ModelSpec, folder: Path | None) -> None:
        self._model = spec.model
        self._has_layout = _artifacts(spec, folder) is not None
        lines.weights(spec)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        if wanted.task is not None and wanted.task not in TASKS:
            raise InvalidInput(f"must be one of {', '.join(TASKS)}, not {wanted.task!r}", param="options.task")
        return [self._prepare(item, wanted) for item in payload.items]

    def _prepare(self, item: Mapping[str, Any], wanted: ExtractOptions) -> Parts | ShoalError:
        task = wanted.task or LAYOUT
        try:
            if "document" in item and "images" not in item:
                return [self._document(documents.read(item["document"]), task, wanted.pages)]
            if "document" not in item and item.get("images"):
                return [self._image(images.only(item, self._model), task)]
            raise InvalidInput(f"model {self._model!r} reads a document or an image", param="document")
        except ShoalError as error:
            return error

    def _document(self, document: documents.Document, task: str, pages: tuple[int, int] | None) -> Prepared:
        inputs: dict[str, Any] = {"data": document.data, "format": document.format}
        if document.format != "pdf":
            if pages is not None:
                raise InvalidInput(f"document is {document.format}, which has no pages to choose", param="document")
            count = document.pages
            return Prepared(inputs, 1 + len(document.data) // _BYTES_PER_COST, units={"pages": count}, about=count)
        self._check_layout(task)
        first, last = documents.page_range(document, pages)
        count = last - first + 1
        documents.check_count(count, MAX_PAGES)
        inputs |= {"task": task, "pages": (first, last), "damaged": documents.inspect(document.data, first, last)}
        return Prepared(inputs, count * _PAGE_COST[task], units={"pages": count}, about=count)

    def _image(self, data: bytes, task: str) -> Prepared:
        if task == FAST:
            raise InvalidInput("an image has no text layer; ask for the task ocr or layout", param="images[0]")
        self._check_layout(task)
        images.size(data, "images[0]")
        inputs = {"data": data, "format": "image", "task": task}
        return Prepared(inputs, _PAGE_COST[task], units={"images": 1}, about=1)

    def _check_layout(self, task: str) -> None:
        if task == LAYOUT and not self._has_layout:
            wrong = (
                "docling's layout weights are not on this machine; ask for the task 'fast' or 'ocr', or give its entry"
            )
            raise load_failed(self._model, NOT_FOUND, f"{wrong} load.artifacts_folder")

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        """Pages that could not be read, or not whole, are named, never left out in silence."""
        [output], [part] = outputs, parts
        if "error" in output:
            raise from_wire(output["error"])
        data = {"markdown": output["markdown"], "pages": part.about}
        failed = sorted({*output["failed"], *part.inputs.get("damaged", ())})
        return {"data": {**data, "failed_pages": failed} if failed else data}


class LoadedDocling:
    """The converters, each made when first needed. Called by the engine's main thread, since it sets an alarm."""

    packed = True  # every document is converted by itself

    def __init__(self, spec: ModelSpec, folder: Path | None, device: str) -> None:
        self._artifacts = _artifacts(spec, folder)
        self._spec = spec
        self._device = device
        self._converters: dict[str, Any] = {}
        self._reader = lines.LineReader(spec)
        self.bytes = _bytes(spec, folder, device)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        return [self._convert(inputs) for inputs in batch]

    def _convert(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            with _at_most(TIMEOUT_S):
                if inputs.get("task") == OCR:
                    return self._read(inputs)
                return self._through_docling(inputs)
        except InvalidInput as error:
            return {"error": error.to_wire()}
        except _TimeUp:
            wrong = f"document took more than {TIMEOUT_S:.0f} s to convert; send fewer pages of it"
            return {"error": InputTooLong(wrong, param="document", extra={"reason": "document_timeout"}).to_wire()}

    def _read(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises InvalidInput for an image, and where no page could be read."""
        if inputs["format"] == "image":
            return {"markdown": self._text_of(images.read(inputs["data"], "images[0]")), "failed": []}
        first, last = inputs["pages"]
        texts, failed = [], []
        for number in range(first, last + 1):
            try:
                page, _ = documents.render(inputs["data"], number, f"page {number}")
            except InvalidInput:
                failed.append(number)
                if len(failed) > last - first:
                    raise
            else:
                texts.append(self._text_of(page))
        return {"markdown": "\n\n".join(texts), "failed": failed}

    def _text_of(self, image: Any) -> str:
        return lines.text_of(self._reader.read(np.asarray(image)))

    def _through_docling(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        from docling.datamodel.base_models import ConversionStatus, DocumentStream

        data, kind, pages = inputs["data"], inputs["format"], inputs.get("pages")
        if kind == "image":
            kind, data = "png", _as_png(data)
        stream = DocumentStream(name=f"document.{'md' if kind == 'txt' else kind}", stream=io.BytesIO(data))
        options = {"page_range": tuple(pages)} if pages else {}
        found = self._converter(inputs.get("task", FAST)).convert(stream, raises_on_error=False, **options)
        if found.status not in (ConversionStatus.SUCCESS, ConversionStatus.PARTIAL_SUCCESS):
            raise InvalidInput(
                f"document could not be converted: it is damaged, or of an unknown kind of {kind}",
                param="document",
                extra={"reason": documents.CORRUPT},
            )
        return {"markdown": found.document.export_to_markdown(), "failed": _failed(found, pages)}

    def _converter(self, task: str) -> Any:
        if task not in self._converters:
            self._converters[task] = _fast() if task == FAST else _layout(self._spec, self._artifacts, self._device)
        return self._converters[task]

    def facts(self) -> Mapping[str, Any]:
        tasks = TASKS if self._artifacts is not None else (FAST, OCR)
        return {"architecture": "docling", "tasks": ", ".join(tasks)}


def _failed(found: Any, pages: Sequence[int] | None) -> list[int]:
    if not pages:
        return []
    return sorted({*range(pages[0], pages[1] + 1)} - {page.page_no for page in found.pages})


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises _TimeUp in the block when it takes longer, again and again: one that hits a finalizer is lost."""

    def ring(number: int, frame: Any) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _RING_AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _as_png(data: bytes) -> bytes:
    buffer = io.BytesIO()
    images.read(data, "images[0]").save(buffer, "PNG")
    return buffer.getvalue()


def _fast() -> Any:
    from docling.datamodel.base_models import InputFormat
    from docling.document_converter import DocumentConverter, NativePdfFormatOption

    kinds = [InputFormat[name] for name in ("PDF", "DOCX", "PPTX", "XLSX", "HTML", "MD", "CSV")]
    return DocumentConverter(allowed_formats=kinds, format_options={InputFormat.PDF: NativePdfFormatOption()})


def _layout(spec: ModelSpec, artifacts: Path | None, device: str) -> Any:
    from docling.datamodel.accelerator_options import AcceleratorOptions
    from docling.datamodel.base_models import InputFormat
    from docling.datamodel.pipeline_options import OcrMode, PdfPipelineOptions, RapidOcrOptions
    from docling.document_converter import DocumentConverter, ImageFormatOption, PdfFormatOption

    if artifacts is None:
        raise load_failed(spec.model, NOT_FOUND, "docling's layout weights are not on this machine")
    paths: dict[str, Any] = {f"{name}_model_path": str(path) for name, path in lines.weights(spec).items()}
    options = {}
    for kind, mode in ((InputFormat.PDF, OcrMode.DEFAULT), (InputFormat.IMAGE, OcrMode.FULL_PAGE)):
        options[kind] = PdfPipelineOptions(
            artifacts_path=artifacts,
            accelerator_options=AcceleratorOptions(device=device),
            do_table_structure=(artifacts / _TABLES_FOLDER).is_dir(),
            ocr_options=RapidOcrOptions(backend="onnxruntime", mode=mode, **paths),
        )
    pdf = PdfFormatOption(pipeline_options=options[InputFormat.PDF])
    image = ImageFormatOption(pipeline_options=options[InputFormat.IMAGE])
    return DocumentConverter(
        allowed_formats=list(options), format_options={InputFormat.PDF: pdf, InputFormat.IMAGE: image}
    )


def _artifacts(spec: ModelSpec, folder: Path | None) -> Path | None:
    """Docling's weights on this machine, if they are here. Raises ModelLoadFailed for an entry that means nothing."""
    for name in spec.load:
        if name not in _LOAD_OPTIONS:
            known = ", ".join(_LOAD_OPTIONS)
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: {known}")
    named = spec.load.get("artifacts_folder")
    places = [folder, Path(named) if named else None, _in_cache(spec)]
    return next((place for place in places if place and (place / _LAYOUT_FOLDER).is_dir()), None)


def _in_cache(spec: ModelSpec) -> Path | None:
    if "artifacts_repo" not in spec.load:
        return None
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, revision = spec.load["artifacts_repo"], spec.load.get("artifacts_revision")
    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    artifacts = _artifacts(spec, folder)
    layout = sum(file.stat().st_size for file in artifacts.rglob("*.safetensors")) if artifacts else 0
    return layout + lines.bytes_of(spec, device)


def warm() -> None:
    import docling.document_converter  # noqa: F401  # and with it torch
    import rapidocr  # noqa: F401


def preparer(spec: ModelSpec, folder: Path | None) -> DoclingPreparer:
    return DoclingPreparer(spec, folder)


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return _bytes(spec, folder, device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> LoadedDocling:
    warm()
    report(0.5)
    model = LoadedDocling(spec, folder, device)
    report(1.0)
    return model
