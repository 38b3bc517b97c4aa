"""Documents written byte by byte, good ones and bad ones."""

import hashlib
import io
import zipfile
from collections.abc import Sequence

_PAD = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_ID = bytes(16)
TYPES = "[Content_Types].xml"


def pdf(texts: Sequence[str], *, rotate: int = 0, encrypt: bool = False, size: tuple[int, int] = (595, 842)) -> bytes:
    """A PDF of one page per text in Helvetica; encrypted ones ask for a password to be opened."""
    count = len(texts)
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(texts):
        lines = "".join(f"({line}) Tj 0 -40 Td " for line in text.split("\n"))
        content = f"BT /F1 24 Tf 60 {size[1] - 100} Td {lines}ET".encode()
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size[0]} {size[1]}] /Rotate {rotate} "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * index} 0 R >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    return _file(objects, _lock(b"s") if encrypt else b"")


def _lock(password: bytes) -> bytes:
    """The standard security handler, revision 2."""
    padded = (password + _PAD)[:32]
    owner = _rc4(hashlib.md5(padded).digest()[:5], padded)
    key = hashlib.md5(padded + owner + (-4 & 0xFFFFFFFF).to_bytes(4, "little") + _ID).digest()[:5]
    user = _rc4(key, _PAD)
    entry = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{owner.hex()}> /U <{user.hex()}> >>"
    return f"{entry} /ID [<{_ID.hex()}> <{_ID.hex()}>]".encode()


def _rc4(key: bytes, data: bytes) -> bytes:
    state, j, out = list(range(256)), 0, bytearray()
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def _file(objects: Sequence[bytes], trailer: bytes) -> bytes:
    data = bytearray(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"trailer\n<< /Size %d /Root 1 0 R %s >>\n" % (len(objects) + 1, trailer)
    return bytes(data + b"startxref\n%d\n%%%%EOF\n" % start)


def archive(entries: dict[str, bytes]) -> bytes:
    """A zip, as office files are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name, body in entries.items():
            made.writestr(name, body)
    return buffer.getvalue()


def zip_bomb() -> bytes:
    """A docx of a megabyte that unpacks to more than a quarter of a gigabyte."""
    big = bytes(90 << 20)
    return archive({TYPES: b"<Types/>", **{f"word/{name}.xml": big for name in "abc"}})


def docx(paragraphs: Sequence[str]) -> bytes:
    import docx as library

    made = library.Document()
    made.add_heading("A heading", 1)
    for paragraph in paragraphs:
        made.add_paragraph(paragraph)
    return _saved(made)


def pptx(texts: Sequence[str]) -> bytes:
    import pptx as library

    made = library.Presentation()
    for text in texts:
        slide = made.slides.add_slide(made.slide_layouts[5])
        slide.shapes.title.text = text
    return _saved(made)


def xlsx(rows: Sequence[Sequence[object]]) -> bytes:
    import openpyxl

    made = openpyxl.Workbook()
    for row in rows:
        made.active.append(list(row))
    return _saved(made)


def _saved(made: object) -> bytes:
    buffer = io.BytesIO()
    made.save(buffer)  # type: ignore[attr-defined]  # each library's document has it
    return buffer.getvalue()
