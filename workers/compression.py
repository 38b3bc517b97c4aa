"""Compressed messages of plain Celery clients, unpacked up to a limit: a few kilobytes may hold gigabytes."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from kombu import compression

_DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": lzma.LZMADecompressor,
}


def limit(max_bytes: int) -> None:
    """From now on kombu unpacks no more than this in this process, and nothing that cannot be stopped there."""
    for content_type in compression.encoders():
        encode, _ = compression.get_encoder(content_type)
        compression.register(encode, _decoder(_DECOMPRESSORS.get(content_type), max_bytes), content_type)


def _decoder(make: Callable[[], Any] | None, max_bytes: int) -> Callable[[bytes], bytes]:
    def decode(body: bytes) -> bytes:
        if make is None:
            raise ValueError("messages compressed in this way are not taken here")
        decompressor = make()
        unpacked: bytes = decompressor.decompress(body, max_bytes + 1)
        if len(unpacked) > max_bytes or not decompressor.eof:
            raise ValueError(f"the message is cut off, or holds more than {max_bytes} bytes")
        return unpacked

    return decode
