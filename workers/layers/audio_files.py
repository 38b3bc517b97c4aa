"""What files of sound say of themselves, read without decoding: their kind, and whether they are whole.

Decoders take a file that was cut off for a shorter one. A WAV says how many bytes it has, an Ogg page likewise; the
frames of an MP3 are counted, since what an MP3 without an index says of its length is a guess.
"""

from collections.abc import Iterator

from protocol.errors import InvalidInput

FORMATS = ("wav", "flac", "ogg", "mp3")
UNTOLD = 1 << 60  # frames of a file that does not say how many; decoders use the largest number there is

_WHERE = "audio"
_STREAMED = 0x7FFF_0000  # a WAV written to a pipe claims at least as many bytes
_OTHERS = (
    (b"\x1a\x45\xdf\xa3", 0, "webm or matroska"),
    (b"ftyp", 4, "mp4 or m4a"),
    (b"AIFF", 8, "aiff"),
    (b"PK\x03\x04", 0, "an archive"),
    (b"caff", 0, "caf"),
    (b"#!AMR", 0, "amr"),
)
_SAMPLES = {3: 1152, 2: 576, 0: 576}  # in a frame of layer III, by MPEG version
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_KBITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBITS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_SLACK = 8  # frames: an index counts itself or not, encoders add some silence


def sniff(data: bytes) -> str | None:
    """One of FORMATS, the name of another kind, or None."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data.startswith(b"fLaC"):
        return "flac"
    if data.startswith(b"OggS"):
        return "ogg"
    other = next((name for mark, at, name in _OTHERS if data[at : at + len(mark)] == mark), None)
    if other is None and (data.startswith(b"ID3") or (data[:1] == b"\xff" and data[1:2] >= b"\xe0")):
        return "mp3"
    return other


def check_whole(kind: str, data: bytes) -> None:
    """Raises InvalidInput for a WAV or Ogg that ends before it says. FLAC's and MP3's ends show when decoded."""
    is_cut = {"wav": _is_cut_wav, "ogg": _is_cut_ogg}.get(kind)
    if is_cut is not None and is_cut(data):
        raise _fault(f"could not be read as {kind}: it is damaged or cut short")


def check_index(data: bytes, told: int) -> None:
    """Raises InvalidInput for an MP3 that has more samples than its decoder would give, which stops at `told`."""
    found = sum(_SAMPLES[version] for version in _frames(data))
    if found > told + _SLACK * 1152:
        raise _fault("is an mp3 of variable bit rate without an index of its frames, whose end would be lost")


def _is_cut_wav(data: bytes) -> bool:
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"data":
            return at + 8 + size > len(data) and size < _STREAMED
        at += 8 + size + size % 2
    return True


def _is_cut_ogg(data: bytes) -> bool:
    """Whether the last page ends behind the file's end."""
    at = data.rfind(b"OggS")
    table = at + 27
    if table > len(data):
        return True
    count = data[table - 1]
    return len(data) < table + count + sum(data[table : table + count])


def _frames(data: bytes) -> Iterator[int]:
    """The MPEG version of every frame of layer III, one after another, from the first that another follows."""
    at = _first_frame(data)
    while at + 4 <= len(data):
        found = _frame(data, at)
        if found is None:
            return
        version, size = found
        yield version
        at += size


def _first_frame(data: bytes) -> int:
    at = 0
    while data[at : at + 3] == b"ID3" and at + 10 <= len(data):
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size
    while 0 <= (at := data.find(b"\xff", at)) < len(data) - 4:
        found = _frame(data, at)
        if found is not None and _frame(data, at + found[1]) is not None:
            return at
        at += 1
    return len(data)


def _frame(data: bytes, at: int) -> tuple[int, int] | None:
    """Version and bytes of the frame whose header is here; None: there is none, or it says no size."""
    head = int.from_bytes(data[at : at + 4], "big")
    version, layer, kbits, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if at + 4 > len(data) or head >> 21 != 0x7FF or version == 1 or layer != 1 or kbits in (0, 15) or rate == 3:
        return None
    table = _KBITS_1 if version == 3 else _KBITS_2
    size = _SAMPLES[version] // 8 * table[kbits] * 1000 // _RATES[version][rate]
    return version, size + (head >> 9 & 1)


def _fault(what: str) -> InvalidInput:
    return InvalidInput(f"{_WHERE} {what}", param=_WHERE, extra={"reason": "audio_corrupt"})
