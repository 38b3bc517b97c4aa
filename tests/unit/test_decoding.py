"""Bodies of messages that would fill a worker's memory are refused before they are made."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from protocol import blobs, parts
from protocol.errors import InvalidInput

MANY = parts.MOST_WRITTEN + 1
LIST = 1 << 17  # one that is not too long by itself
LISTS = b"\xdd" + LIST.to_bytes(4, "big") + b"\x90" * LIST
MAPS = b"\xdd" + LIST.to_bytes(4, "big") + b"\x80" * LIST
CLAIMS = b"\xdd" + (1 << 20).to_bytes(4, "big")
BOMBS = {
    "json": b'[[], {"items": [' + b"[]," * MANY + b"[]]}, {}]",
    "msgpack lists": b"\x93\x90\x81\xa5items\x95" + LISTS * 5 + b"\x80",
    "msgpack maps": b"\x93\x90\x81\xa5items\x95" + MAPS * 5 + b"\x80",
}
# In a process of its own: what kombu knows is the process's.
SCRIPT = """
import resource, sys
from kombu.message import Message
from protocol.errors import ShoalError
from workers import bodies, decoding
decoding.limit()
kind = sys.argv[1]
encoding = "utf-8" if kind.endswith("json") else "binary"
body = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
message = Message(body, content_type=kind, content_encoding=encoding, accept=[kind])
try:
    print(len(bodies.arguments(message, 1 << 30)["items"]))
except ShoalError as error:
    print(error.message)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def read(kind: str, body: bytes) -> tuple[str, int]:
    """What was said of it, and the KiB that the process grew by."""
    command: list[Any] = [sys.executable, "-c", SCRIPT, kind]
    root = Path(__file__).resolve().parents[2]
    said = subprocess.run(command, input=body, capture_output=True, check=True, cwd=root).stdout.decode().splitlines()
    return said[0], int(said[1])


@pytest.mark.parametrize("kind", ["application/json", "application/x-msgpack"])
def test_a_body_with_as_many_items_as_a_call_may_hold_is_read(kind: str) -> None:
    body = [[], {"items": [{"text": "a", "id": str(n)} for n in range(4096)]}, {}]
    packed = json.dumps(body).encode() if kind.endswith("json") else msgpack.packb(body)
    assert read(kind, packed)[0] == "4096"


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_never_made(name: str) -> None:
    said, grown = read("application/json" if name == "json" else "application/x-msgpack", BOMBS[name])
    assert "maps, lists and keys" in said
    assert grown < 100 * parts.MOST_WRITTEN / 1024


def test_lists_that_claim_to_be_long_are_refused() -> None:
    said, grown = read("application/x-msgpack", b"\x93\x90\x81\xa5items" + CLAIMS * 500 + b"\xc0" * (1 << 20))
    assert "cannot be read" in said
    assert grown < 50_000


def test_a_payload_that_stands_elsewhere_is_bounded_too() -> None:
    bomb = b"\x83\xa5items\x95" + MAPS * 5 + b"\xa7options\x80\xa5query\xc0"
    with pytest.raises(InvalidInput, match="maps, lists and keys"):
        blobs.unpack_payload(bomb)
