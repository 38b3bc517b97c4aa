"""API keys in the database: issuing, revoking, and the follower that keeps a gateway's picture of them fresh.

Gateways read keys from the database, not from Redis. Redis only carries a version number: workers can write to Redis,
and a worker that was taken over must not be able to hand itself an administrator's key.
"""

import logging
import time
from datetime import datetime

import redis
from django.conf import settings
from django.db import connections, transaction

from catalog import keys
from catalog.follow import Follower, connect
from catalog.keys import KeyRecord, KeySnapshot
from catalog.models import ApiKey
from protocol import names

log = logging.getLogger("shoal.catalog")

# A revocation reaches gateways through Redis within about a second; without Redis, within this.
_RELOAD_EVERY_S = 10.0


def issue(row: ApiKey) -> str:
    """Give a row that is not saved yet its secret; returns the key's text, which cannot be had again."""
    new = keys.generate()
    row.prefix, row.digest = new.prefix, new.digest
    return new.text


def revoke(row: ApiKey, now: datetime) -> None:
    """From now on the key is refused. The row stays, so that its usage keeps a name."""
    if row.revoked is None:
        row.revoked = now
        row.save(update_fields=["revoked"])


def read_keys() -> KeySnapshot:
    return KeySnapshot(_record(row) for row in ApiKey.objects.filter(revoked=None))


def announce_on_commit() -> None:
    """Tell gateways that keys changed. Call it after `QuerySet.update`; `save` and `delete` do it themselves."""
    transaction.on_commit(_announce)


def _announce() -> None:
    try:
        with connect(settings.SHOAL_REDIS_URL) as client:
            version = client.incr(names.KEYS_VERSION)
            client.publish(names.KEYS_VERSION, version)
    except redis.RedisError as error:
        log.warning("key change not announced", extra={"error": type(error).__name__})


def _record(row: ApiKey) -> KeyRecord:
    return KeyRecord(
        prefix=row.prefix,
        digest=row.digest,
        name=row.name,
        lane=row.lane,
        primitives=frozenset(row.primitives),
        models=frozenset(row.allowed_models),
        is_admin=row.is_admin,
        expires=row.expires.timestamp() if row.expires else None,
    )


class KeyFollower(Follower):
    """Follows the keys: `current` is read again when the version changes, and every ten seconds in any case."""

    def __init__(self, redis_url: str) -> None:
        super().__init__(redis_url, names.KEYS_VERSION)
        self.current = KeySnapshot()
        self._seen: int | None = None
        self._loaded_at = -_RELOAD_EVERY_S

    def look(self, client: "redis.Redis", version: int | None, was_away: bool) -> None:
        if version != self._seen or was_away or self._is_old():
            self._load()
            self._seen = version

    def look_without_redis(self) -> None:
        if self._is_old():
            self._load()

    def _is_old(self) -> bool:
        return time.monotonic() - self._loaded_at >= _RELOAD_EVERY_S

    def _load(self) -> None:
        try:
            self.current = read_keys()
            self._loaded_at = time.monotonic()
        finally:
            connections.close_all()  # between looks this thread needs none
