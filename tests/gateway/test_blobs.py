"""Payloads put aside: where each goes, that it comes back whole, and that a reference is never a path."""

import time
from pathlib import Path

import pytest

from protocol import blobs
from protocol.errors import Expired, InvalidInput, TransportFailure
from protocol.messages import Payload

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def nothing(key: str) -> None:
    return None


def test_size_decides_where_a_payload_goes() -> None:
    assert blobs.reference(ID, 8 << 20, 100.0) == f"redis:{ID}"
    assert blobs.reference(ID, (8 << 20) + 1, 100.9) == f"file:100-{ID}"


def test_redis_payload_is_read_by_its_key() -> None:
    assert blobs.fetch(f"redis:{ID}", Path("unused"), {f"shoal:blob:{ID}": b"data"}.get) == b"data"


def test_file_payload_comes_back_whole(tmp_path: Path) -> None:
    ref = blobs.reference(ID, 9 << 20, time.time() + 60)
    blobs.write_file(tmp_path / "blobs", ref, b"data")
    assert blobs.fetch(ref, tmp_path / "blobs", nothing) == b"data"
    assert (tmp_path / "blobs").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_keeps_nothing_of_a_payload(tmp_path: Path) -> None:
    ref = blobs.reference(ID, 9 << 20, time.time() + 60)
    draft = tmp_path / f"{ref.removeprefix('file:')}.draft"
    draft.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        blobs.write_file(tmp_path, ref, b"data")
    assert list(tmp_path.iterdir()) == []


def test_payload_that_cannot_be_read_may_be_asked_for_again(tmp_path: Path) -> None:
    ref = blobs.reference(ID, 9 << 20, time.time() + 60)
    (tmp_path / ref.removeprefix("file:")).mkdir()
    with pytest.raises(TransportFailure):
        blobs.fetch(ref, tmp_path, nothing)


def test_payload_that_is_gone_is_expired(tmp_path: Path) -> None:
    for ref in (f"redis:{ID}", f"file:100-{ID}"):
        with pytest.raises(Expired):
            blobs.fetch(ref, tmp_path, nothing)


def test_dropped_payload_is_gone(tmp_path: Path) -> None:
    kept, ref = {f"shoal:blob:{ID}": b"data"}, blobs.reference(ID, 9 << 20, time.time() + 60)
    blobs.write_file(tmp_path, ref, b"data")
    blobs.drop(ref, tmp_path, kept.pop)
    blobs.drop(ref, tmp_path, kept.pop)
    blobs.drop(f"redis:{ID}", tmp_path, kept.pop)
    assert list(tmp_path.iterdir()) == []
    assert kept == {}


def test_expired_files_are_swept_at_the_next_write(tmp_path: Path) -> None:
    old = blobs.reference(ID, 9 << 20, time.time() - 1)
    blobs.write_file(tmp_path, old, b"old")
    blobs.write_file(tmp_path, blobs.reference(ID, 9 << 20, time.time() + 60), b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "redis:",
        f"redis:100-{ID}",
        f"file:{ID}",
        f"file:100-../../etc/passwd{ID}",
        f"file:../{ID}",
        f"file:/etc/{ID}",
        "redis:shoal:catalog",
        f"s3:{ID}",
        f"redis:{ID}\n",
        None,
        3,
    ],
)
def test_a_reference_is_never_a_path(ref: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        blobs.fetch(ref, tmp_path, nothing)


def test_payload_survives_packing() -> None:
    payload = Payload([{"id": "a", "text": "river"}, {"token_ids": [1, 2]}], {"normalize": True})
    assert blobs.unpack_payload(blobs.pack_payload(payload)) == payload
