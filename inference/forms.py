"""Form bodies, as browsers and OpenAI's clients send files: fields and files of a multipart body that is in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.http import parse_header_parameters

from protocol.errors import InvalidInput

_FORM = "multipart/form-data"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Form:
    """Every field and file by its name; one that was given twice has two values."""

    fields: Mapping[str, Sequence[str]]
    files: Mapping[str, Sequence[bytes]]


def read_form(content: bytes, content_type: str) -> Form:
    """Raises InvalidInput for what is no form, or one that was cut short."""
    kind, parameters = parse_header_parameters(content_type)
    if kind.strip().lower() != _FORM:
        raise InvalidInput(f"the body must be {_FORM}")
    if not content.rstrip(b"\r\n \t").endswith(f"--{parameters.get('boundary')}--".encode("latin-1", "replace")):
        raise InvalidInput("the form is cut short, or its boundary is not the one that its content type names")
    meta = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(len(content))}
    try:
        fields, files = MultiPartParser(meta, BytesIO(content), [_InMemory()], "utf-8").parse()
    except (MultiPartParserError, SuspiciousOperation) as error:
        raise InvalidInput(f"the form cannot be read: {str(error)[:80]}") from None
    contents: dict[str, list[bytes]] = {name: [file.content for file in found] for name, found in files.lists()}
    return Form({name: [str(value) for value in values] for name, values in fields.lists()}, contents)


@dataclass(slots=True)
class _File:
    """What Django's parser puts among the files; it closes what it has read."""

    content: bytes

    def close(self) -> None: ...


class _InMemory(FileUploadHandler):
    """Keeps files as bytes: the body is in memory anyway, and no larger than a body may be."""

    chunk_size = _CHUNK_BYTES

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self._chunks: list[bytes] = []

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._chunks.append(raw_data)

    def file_complete(self, file_size: int) -> Any:
        return _File(b"".join(self._chunks))
