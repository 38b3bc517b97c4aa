"""Compressed messages are unpacked up to a limit."""

import bz2
import lzma
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest

KINDS: dict[str, Callable[[bytes], bytes]] = {"gzip": zlib.compress, "bzip2": bz2.compress, "xz": lzma.compress}
SCRIPT = """
import sys
from kombu.compression import decompress
from workers import compression
compression.limit(1000)
body = sys.stdin.buffer.read()
try:
    print(len(decompress(body, sys.argv[1])))
except ValueError as error:
    print(error)
"""


def unpack(kind: str, body: bytes) -> str:
    """In a process of its own: what kombu knows is the process's."""
    command: list[Any] = [sys.executable, "-c", SCRIPT, kind]
    return subprocess.run(command, input=body, capture_output=True, check=True).stdout.decode().strip()


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_within_the_limit_is_unpacked(kind: str) -> None:
    assert unpack(kind, KINDS[kind](b"a" * 1000)) == "1000"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_not_unpacked(kind: str) -> None:
    assert "more than 1000 bytes" in unpack(kind, KINDS[kind](b"a" * 50_000_000))


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_message_is_not_taken_for_a_whole_one(kind: str) -> None:
    body = KINDS[kind](bytes(range(256)))
    assert "cut off" in unpack(kind, body[: len(body) // 2])
