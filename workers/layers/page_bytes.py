"""What PDFium keeps silent about, read from a PDF of one page as PDFium writes it: plainly, one object after another.

A page whose content breaks off is shown as far as it goes, one whose content is garbage as a blank page. Images that
serve as masks, or that patterns hold, are no objects of the page, and yet other libraries decode them.
"""

import re
import zlib
from collections.abc import Iterator

_LONGEST_CONTENT = 32 << 20  # unpacked; what is longer is taken for whole
_LONGEST_TAIL = 16  # bytes after packed content: its sum, ends of lines
_FLATE = re.compile(rb"/Filter(?: ?\[ ?)?/Fl(?:ateDecode)?\b")
_LENGTH = re.compile(rb"/Length (\d+)")
_IMAGE = re.compile(rb"/Subtype/Image\b")
_SIDES = (re.compile(rb"/Width (\d+)"), re.compile(rb"/Height (\d+)"))
_STREAM = re.compile(rb"\b(\d+) 0 obj\r\n(<<(?:(?!endobj).)*?>>)stream\r\n", re.DOTALL)
_CONTENTS = re.compile(rb"/Contents ?(\d+ 0 R|\[[^\]]*\])")
_LIST = rb"\b%d 0 obj\r\n(\[[^\]]*\])"
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
    for stream in _STREAM.finditer(page):
        if _IMAGE.search(stream[2]):
            width, height = (side.search(stream[2]) for side in _SIDES)
            yield int(width[1]) if width else 0, int(height[1]) if height else 0


def is_damaged(page: bytes, shows_nothing: bool) -> bool:
    """Whether the page's content breaks off, or is no content where nothing of it is shown."""
    streams = [_unpacked(page, number) for number in _contents(page)]
    if any(stream is None for stream in streams):
        return True
    content = b"\n".join(stream for stream in streams if stream is not None)
    return shows_nothing and not _is_blank(content)


def _is_blank(content: bytes) -> bool:
    """Whether this is content, every operand with its operator."""
    words = _COMMENT.sub(b"", content).strip(b"\0\t\n\f\r ")
    return not words or (words[-1:] in _LAST and not _KNOWN.sub(b" ", words).strip())


def _contents(page: bytes) -> list[int]:
    """The numbers of the objects that its content is in, in order."""
    found = _CONTENTS.search(page)
    if found is None:
        return []
    numbers = [int(number) for number in _REFERENCE.findall(found[1])]
    listed = re.search(_LIST % numbers[0], page) if len(numbers) == 1 else None
    return numbers if listed is None else [int(number) for number in _REFERENCE.findall(listed[1])]


def _unpacked(page: bytes, number: int) -> bytes | None:
    """A stream's bytes, of those whose packing is known here; None for one that breaks off."""
    stream = next((one for one in _STREAM.finditer(page) if int(one[1]) == number), None)
    length = _LENGTH.search(stream[2]) if stream else None
    if stream is None or length is None:
        return b""
    data = page[stream.end() : stream.end() + int(length[1])]
    if not _FLATE.search(stream[2]):
        return data if b"/Filter" not in stream[2] else b""
    reader = zlib.decompressobj(-zlib.MAX_WBITS)  # the sum at its end is not asked for: many writers leave it out
    try:
        content = reader.decompress(data[2:], _LONGEST_CONTENT)
    except zlib.error:
        return None
    is_whole = reader.eof and len(reader.unused_data) <= _LONGEST_TAIL
    return content if is_whole or reader.unconsumed_tail else None
