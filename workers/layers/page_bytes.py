"""What PDFium keeps silent about, read from a PDF of one page as PDFium writes it: plainly, one object after another.

A page whose content breaks off is shown as far as it goes, one whose content is garbage as a blank page. Images that
serve as masks, or that patterns hold, are no objects of the page, and yet other libraries decode them.
"""

import itertools
import re
import zlib
from collections.abc import Iterator, Mapping

_LONGEST_CONTENT = 32 << 20  # unpacked; what is longer is taken for whole
_LONGEST_TABLE = 1 << 20  # of places of objects
_LONGEST_TAIL = 16  # bytes after packed content: its sum, ends of lines
_FLATE = re.compile(rb"/Filter(?: ?\[ ?)?/Fl(?:ateDecode)?\b")
_LENGTH = re.compile(rb"/Length (\d+)")
_IMAGE = re.compile(rb"/Subtype/Image\b")
_SIDES = (re.compile(rb"/Width (\d+)"), re.compile(rb"/Height (\d+)"))
_TABLE = re.compile(rb"xref\r\n(.{0,%d}?)trailer" % _LONGEST_TABLE, re.DOTALL)
_OFFSET = re.compile(rb"(\d{10}) \d{5} n")
_NUMBER = re.compile(rb"(\d+) 0 obj\r\n")
_PAGE = re.compile(rb"/Type/Page\b")
_CONTENTS = re.compile(rb"/Contents ?(\d+ 0 R|\[[^\]]*\])")
_REFERENCE = re.compile(rb"(\d+) 0 R")
_OPERATORS = rb"""
    b\*? B\*? BDC BI BMC BT BX c cm CS cs d d0 d1 Do DP EI EMC ET EX f F f\* G g gs h i ID j J K k l M m MP n q Q re
    RG rg ri S s SC sc SCN scn sh T\* Tc TD Td Tf TJ Tj TL Tm Tr Ts Tw Tz v W W\* w y ' " true false null
"""
_COMMENT = re.compile(rb"%[^\r\n]*")
_LAST = frozenset(
    bytes([letter]) for letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*'\""
)  # of operators
_KNOWN = re.compile(
    rb"""\((?:[^()\\]|\\.)*\) | <[0-9A-Fa-f\s]*> | << | >> | [\[\]\x00]  # strings, brackets
    | /[^\x00\s()<>\[\]{}/%]* | (?<![^\x00\s\])>])[-+.\d]+                          # names, numbers
    | (?<![A-Za-z\d*'"])(?:"""
    + rb"|".join(_OPERATORS.split())
    + rb""")(?![A-Za-z\d*'"])""",
    re.VERBOSE | re.DOTALL,
)


def image_sizes(page: bytes) -> Iterator[tuple[int, int]]:
    """Width and height of every image that the page may need."""
    for head, data in _objects(page).values():
        if data is not None and _IMAGE.search(head):
            width, height = (side.search(head) for side in _SIDES)
            yield int(width[1]) if width else 0, int(height[1]) if height else 0


def is_damaged(page: bytes, shows_nothing: bool) -> bool:
    """Whether the page's content breaks off, or is no content where nothing of it is shown."""
    objects = _objects(page)
    streams = [_unpacked(*objects.get(number, (b"", None))) for number in _contents(objects)]
    if any(stream is None for stream in streams):
        return True
    content = b"\n".join(stream for stream in streams if stream is not None)
    return shows_nothing and not _is_blank(content)


def _is_blank(content: bytes) -> bool:
    """Whether this is content, every operand with its operator."""
    words = _COMMENT.sub(b"", content).strip(b"\0\t\n\f\r ")
    return not words or (words[-1:] in _LAST and not _KNOWN.sub(b" ", words).strip())


def _objects(page: bytes) -> Mapping[int, tuple[bytes, bytes | None]]:
    """By number what stands before its data, and the data of one that has any; by the file's own table of places."""
    start = page.rfind(b"xref\r\n", 0, max(page.rfind(b"startxref"), 0))
    table = _TABLE.match(page, start) if start >= 0 else None
    if table is None:
        return {}
    places = sorted(int(place) for place in _OFFSET.findall(table[1]))
    found = {}
    for place, end in itertools.pairwise([*places, start]):
        number = _NUMBER.match(page, place)
        if number is not None:
            at = page.find(b"stream\r\n", place, end)
            head = page[number.end() : end if at < 0 else at]
            found[int(number[1])] = head, None if at < 0 else page[at + len(b"stream\r\n") : end]
    return found


def _contents(objects: Mapping[int, tuple[bytes, bytes | None]]) -> list[int]:
    """The numbers of the objects that its content is in, in order."""
    page = next((head for head, data in objects.values() if data is None and _PAGE.search(head)), b"")
    named = _CONTENTS.search(page)
    numbers = [int(number) for number in _REFERENCE.findall(named[1])] if named else []
    listed, data = objects.get(numbers[0], (b"", None)) if len(numbers) == 1 else (b"", None)
    return numbers if data is not None else [int(number) for number in _REFERENCE.findall(listed)] or numbers


def _unpacked(head: bytes, data: bytes | None) -> bytes | None:
    """A stream's bytes, of those whose packing is known here; None for one that breaks off."""
    length = _LENGTH.search(head)
    if data is None or length is None:
        return b""
    data = data[: int(length[1])]
    if not _FLATE.search(head):
        return data if b"/Filter" not in head else b""
    reader = zlib.decompressobj(-zlib.MAX_WBITS)  # the sum at its end is not asked for: many writers leave it out
    try:
        content = reader.decompress(data[2:], _LONGEST_CONTENT)
    except zlib.error:
        return None
    is_whole = reader.eof and len(reader.unused_data) <= _LONGEST_TAIL
    return content if is_whole or reader.unconsumed_tail else None
