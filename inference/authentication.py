"""Who is calling: an API key is checked against the snapshot in memory, before a byte of the body is read."""

import time

from catalog import keys
from catalog.keys import KeyRecord, KeySnapshot


def authenticate(authorization: str | None, snapshot: KeySnapshot, is_required: bool) -> KeyRecord | None:
    """The caller's key; None for an anonymous caller where keys are optional. Raises Unauthorized.

    Where they are optional, a word that is no key of ours counts as none: OpenAI's client insists on sending one. A key
    of ours that is wrong or revoked is refused everywhere.
    """
    presented = _bearer(authorization)
    if not is_required and (presented is None or not presented.startswith(keys.MARK)):
        return None
    return keys.authenticate(snapshot, presented, time.time())


def _bearer(authorization: str | None) -> str | None:
    scheme, _, presented = (authorization or "").partition(" ")
    return presented.strip() if scheme.lower() == "bearer" else None
