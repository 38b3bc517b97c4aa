"""From the database to everybody's memory: builds the snapshot of all served models and publishes it through Redis."""

import logging
import time

import redis
from django.conf import settings
from django.db import connections, transaction

from catalog.follow import connect
from catalog.models import RegisteredModel
from catalog.schema import EntryError
from catalog.snapshot import Snapshot
from protocol import names

log = logging.getLogger("shoal.catalog")


def build(version: int) -> Snapshot:
    """All served models with the administrators' decisions applied, in two queries at most."""
    models = []
    rows = RegisteredModel.objects.filter(enabled=True, missing_since=None).select_related("pool").order_by("name")
    for row in rows:
        try:
            models.append(row.effective())
        except EntryError as error:  # written by another version of Shoal; one bad row must not hide all others
            log.error("entry left out", extra={"model": row.name, "problem": str(error)})
    return Snapshot(version, tuple(models))


def publish() -> int:
    """Put the catalog into Redis and announce it; returns its version. Raises RedisError.

    The version is watched while the database is read: of two processes that publish at once, the one that read first
    fails and reads again, so an older catalog never replaces a newer one.
    """
    with connect(settings.SHOAL_REDIS_URL) as client, client.pipeline() as pipe:
        while True:
            try:
                pipe.watch(names.CATALOG_VERSION)
                version = _next_version(pipe.get(names.CATALOG_VERSION))
                text = build(version).to_json()
                pipe.multi()
                pipe.set(names.CATALOG, text)
                pipe.set(names.CATALOG_VERSION, version)
                pipe.publish(names.CATALOG_VERSION, version)
                pipe.execute()
            except redis.WatchError:
                continue
            log.info("catalog published", extra={"version": version})
            return version


def publish_safely() -> int | None:
    """`publish`, or None where Redis is away: a gateway's follower publishes again when it is back."""
    try:
        return publish()
    except redis.RedisError as error:
        log.warning("catalog not published", extra={"error": type(error).__name__})
        return None


def publish_on_commit() -> None:
    """After this transaction. Call it after `QuerySet.update` and the like; `save` and `delete` do it themselves."""
    transaction.on_commit(publish_safely)


def restore() -> None:
    """What a gateway's SnapshotFollower calls: publish from its thread, and leave no connection behind there."""
    try:
        publish()
    finally:
        connections.close_all()


def _next_version(current: bytes | None) -> int:
    """Grows by the clock too, so that a Redis that lost its data never repeats a version that somebody holds."""
    return max(int(current or 0) + 1, int(time.time() * 1000))
