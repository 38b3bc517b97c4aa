"""Payloads too large for a broker: kept in Redis, or in files when even larger, while the message carries a reference.

A reference says which of the two (`redis:<id>` or `file:<expiry>-<id>`). It may come from any client of the broker,
so it is never a path.
"""

import re
from collections.abc import Callable
from pathlib import Path

from protocol import clock, codec, names
from protocol.errors import Expired, InvalidInput, TransportFailure
from protocol.messages import Payload

INLINE_BYTES = 64 << 10  # up to here a payload travels in its message
REDIS_BYTES = 8 << 20  # up to here it is kept in Redis
SLACK_S = 60  # kept this long past the request's deadline

_REFERENCE = re.compile(r"(redis|file):(?:(\d{1,12})-)?([0-9a-f-]{32,36})")


def reference(request_id: str, size: int, expires: float) -> str:
    """Where a payload of `size` bytes belongs."""
    if size <= REDIS_BYTES:
        return f"redis:{request_id}"
    return f"file:{int(expires)}-{request_id}"


def redis_key(ref: str) -> str | None:
    """The key of a payload that is kept in Redis; None for one kept in a file. Raises InvalidInput."""
    kind, _, blob_id = _parse(ref)
    return names.blob(blob_id) if kind == "redis" else None


def write_file(folder: Path, ref: str, data: bytes) -> None:
    """Keep a payload in `folder`, whole or not at all, and drop the expired ones there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(folder, clock.now())
    path = folder / _file_name(ref)
    draft = path.with_suffix(".draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)  # on a full disk it would be in the way of the next one
        raise


def fetch(ref: str, folder: Path, get: Callable[[str], bytes | None]) -> bytes:
    """The payload behind a reference; `get` reads a Redis key. Raises Expired when it is gone."""
    key = redis_key(ref)
    data = get(key) if key is not None else _read_file(folder / _file_name(ref))
    if data is None:
        raise Expired("the request's payload is no longer kept; its deadline has passed")
    return data


def drop(ref: str, folder: Path, delete: Callable[[str], object]) -> None:
    """Forget a payload whose request was answered; `delete` removes a Redis key."""
    key = redis_key(ref)
    if key is not None:
        delete(key)
    else:
        (folder / _file_name(ref)).unlink(missing_ok=True)


def sweep(folder: Path, now: float) -> None:
    """Remove files whose time has passed; several processes may sweep at once."""
    for path in folder.iterdir() if folder.is_dir() else ():
        expires = path.name.partition("-")[0]
        if expires.isdigit() and int(expires) < now:
            path.unlink(missing_ok=True)


def pack_payload(payload: Payload) -> bytes:
    return codec.pack(payload.to_wire())


def unpack_payload(data: bytes) -> Payload:
    """Raises InvalidInput when it has too many maps, lists and keys, ValueError or TypeError when it is no payload."""
    return Payload(**codec.unpack_bounded(data))


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TransportFailure(f"the request's payload could not be read ({error.strerror})") from None


def _parse(ref: str) -> tuple[str, str | None, str]:
    match = _REFERENCE.fullmatch(ref) if isinstance(ref, str) else None
    if match is None or (match[1] == "file") != (match[2] is not None):
        raise InvalidInput("blob is not a reference that a gateway gave out", param="blob")
    return match[1], match[2], match[3]


def _file_name(ref: str) -> str:
    _, expires, blob_id = _parse(ref)
    return f"{expires}-{blob_id}"
