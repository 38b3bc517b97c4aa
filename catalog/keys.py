"""API keys as gateways hold them in memory: how one looks, how it is checked, what it permits. Plain Python.

A key reads `sk-shoal-PREFIX-SECRET`. The prefix finds its record and may appear in logs; of the secret only the SHA-256
is kept anywhere. A fast hash is right here: the secret is 256 random bits, which nobody guesses.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.errors import Forbidden, Unauthorized

MARK = "sk-shoal-"
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What a gateway knows of one key; empty `primitives` or `models` permit all."""

    prefix: str
    digest: str
    name: str
    lane: str
    primitives: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    is_admin: bool = False
    expires: float | None = None  # unix time

    def permit(self, primitive: str, model: str) -> None:
        """Raises Forbidden unless this key may call `primitive` on `model`, a catalog id without profile."""
        if self.primitives and primitive not in self.primitives:
            raise Forbidden(f"This API key may not call {primitive}; it may call {', '.join(sorted(self.primitives))}.")
        if self.models and model not in self.models:
            raise Forbidden("This API key may not use this model.", param="model")


class KeySnapshot:
    """All keys that are not revoked, by prefix; immutable."""

    def __init__(self, records: Iterable[KeyRecord] = ()) -> None:
        self._records = {record.prefix: record for record in records}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, prefix: str) -> KeyRecord | None:
        return self._records.get(prefix)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made; `text` is shown once, the rest is kept."""

    text: str
    prefix: str
    digest: str


def generate() -> NewKey:
    prefix, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    return NewKey(f"{MARK}{prefix}-{secret}", prefix, _digest(secret))


def authenticate(snapshot: KeySnapshot, presented: str | None, now: float) -> KeyRecord:
    """The record of a presented key; raises Unauthorized. Takes the same time for every wrong key."""
    if not presented:
        raise Unauthorized("An API key is required: send 'Authorization: Bearer sk-shoal-…'.")
    prefix, _, secret = presented.removeprefix(MARK).partition("-")
    record = snapshot.find(prefix) if presented.startswith(MARK) else None
    matches = hmac.compare_digest(_digest(secret), record.digest if record else _NO_DIGEST)
    if record is None or not matches:
        raise Unauthorized("This API key is unknown or was revoked.")
    if record.expires is not None and record.expires <= now:
        raise Unauthorized("This API key has expired.")
    return record


def _digest(secret: str) -> str:
    # A header may hold bytes that are not UTF-8; they are wrong, not a crash.
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
