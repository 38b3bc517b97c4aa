"""Documents written byte by byte, good ones and bad ones."""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Sequence

_PAD = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_ID = bytes(16)
TYPES = "[Content_Types].xml"


def pdf(
    texts: Sequence[str],
    *,
    rotate: int = 0,
    user: bytes | None = None,
    owner: bytes | None = None,
    packed: bool = False,
    size: tuple[int, int] = (595, 842),
) -> bytes:
    """A PDF of one page per text in Helvetica; `size` is as it is shown, upright, whatever the page's `rotate`.

    With a password of `user` it cannot be opened without; with one of the `owner` alone everybody may read it.
    """
    streams = [content(text, size, rotate) for text in texts]
    streams = [zlib.compress(stream) for stream in streams] if packed else streams
    key, trailer = (None, b"") if user is None and owner is None else _lock(user or b"", owner or user or b"")
    count = len(texts)
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(count))
    width, height = size if rotate % 180 == 0 else size[::-1]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, stream in enumerate(streams):
        number = 5 + 2 * index
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width} {height}] /Rotate {rotate} "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {number} 0 R >>".encode()
        )
        body = stream if key is None else _rc4(_object_key(key, number), stream)
        objects.append(_stream(body, b"/Filter /FlateDecode" if packed else b""))
    return _file(objects, trailer)


def content(text: str, size: tuple[int, int] = (595, 842), rotate: int = 0) -> bytes:
    """What a page of `pdf` draws, line by line."""
    width, height = size
    turn = {
        0: "1 0 0 1 0 0",
        90: f"0 1 -1 0 {height} 0",
        180: f"-1 0 0 -1 {width} {height}",
        270: f"0 -1 1 0 0 {width}",
    }
    lines = "".join(f"({line}) Tj 0 -40 Td " for line in text.split("\n"))
    return (
        f"{turn[rotate]} cm BT /F1 24 Tf {min(60, width // 8)} {max(height - 100, height // 2)} Td {lines}ET".encode()
    )


def pdf_of_image(side: int, packed: bytes, place: str = "image") -> bytes:
    """One page with an image of as many black dots each way: drawn, as the mask of another one, or in a pattern."""
    draw = b"q 500 0 0 500 0 0 cm /I Do Q"
    dots = b"/ColorSpace /DeviceGray /Filter /FlateDecode"
    size = b"/Width %d /Height %d /BitsPerComponent 1" % (side, side)
    large = _stream(packed, b"/Type /XObject /Subtype /Image %s %s" % (size, dots))
    dot = b"/Type /XObject /Subtype /Image /Width 1 /Height 1 /BitsPerComponent 8 /SMask 6 0 R " + dots
    tiles = b"/PatternType 1 /PaintType 1 /TilingType 1 /BBox [0 0 500 500] /XStep 500 /YStep 500"
    tile = b"/Type /Pattern %s /Resources << /XObject << /I 6 0 R >> >>" % tiles
    drawn = b"/XObject << /I 5 0 R >>"
    resources, shown, more = {
        "image": (drawn, draw, [large]),
        "mask": (drawn, draw, [_stream(zlib.compress(b"\0"), dot), large]),
        "pattern": (b"/Pattern << /P 5 0 R >>", b"/Pattern cs /P scn 0 0 500 500 re f", [_stream(draw, tile), large]),
    }[place]
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << %s >> /Contents 4 0 R >>" % resources
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return _file([b"<< /Type /Catalog /Pages 2 0 R >>", pages, page, _stream(shown), *more], b"")


def pdf_of_contents(streams: Sequence[bytes]) -> bytes:
    """One page whose content is in all of these, named by a list that is an object of its own."""
    listed = b"[%s]" % b" ".join(b"%d 0 R" % (6 + place) for place in range(len(streams)))
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 100] "
        b"/Resources << /Font << /F1 4 0 R >> >> /Contents 5 0 R >>"
    )
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    first = [b"<< /Type /Catalog /Pages 2 0 R >>", pages, page, font, listed]
    return _file([*first, *map(_stream, streams)], b"")


def _stream(body: bytes, entries: bytes = b"") -> bytes:
    return b"<< %s /Length %d >>\nstream\n%s\nendstream" % (entries, len(body), body)


def _lock(user: bytes, owner: bytes) -> tuple[bytes, bytes]:
    """The standard security handler, revision 2: the file's key, and what stands in its trailer."""
    padded = (user + _PAD)[:32]
    entry = _rc4(hashlib.md5((owner + _PAD)[:32]).digest()[:5], padded)
    key = hashlib.md5(padded + entry + (-4 & 0xFFFFFFFF).to_bytes(4, "little") + _ID).digest()[:5]
    lock = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{entry.hex()}> /U <{_rc4(key, _PAD).hex()}> >>"
    return key, f"{lock} /ID [<{_ID.hex()}> <{_ID.hex()}>]".encode()


def _object_key(key: bytes, number: int) -> bytes:
    return hashlib.md5(key + number.to_bytes(3, "little") + bytes(2)).digest()[:10]


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
