"""Followers keep an immutable picture of the catalog (or of the keys) in memory, fresh to about a second.

Nobody waits for them: readers take `current`, a thread replaces it whole. While Redis is away the last picture stays.
Plain Python, so that a worker needs neither Django nor a database.
"""

import logging
import threading
from collections.abc import Callable
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from catalog.snapshot import EMPTY, Snapshot
from protocol import names

log = logging.getLogger("shoal.catalog")

_LOOK_EVERY_S = 1.0


def connect(redis_url: str) -> "redis.Redis":
    """A client that gives up on a silent Redis within seconds; one retry, for a connection that has gone stale."""
    return redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=2, retry=Retry(NoBackoff(), 1))


class Follower:
    """Looks at a version counter once a second, and at once when a change is announced on the channel of that name."""

    def __init__(self, redis_url: str, version_key: str) -> None:
        self._redis_url = redis_url
        self._version_key = version_key
        self._stopping = threading.Event()
        self._has_looked = threading.Event()
        self._is_away = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=f"follow {version_key}", daemon=True)

    def start(self) -> Self:
        """Returns after the first look, so that `current` is filled if it can be; then goes on in the background."""
        self._thread.start()
        self._has_looked.wait(timeout=10)
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=10)

    def look(self, client: "redis.Redis", version: int | None, was_away: bool) -> None:
        """Refresh if `version` (None: Redis has none) differs from what is held. `was_away`: Redis just came back."""
        raise NotImplementedError

    def look_without_redis(self) -> None:
        """Called instead of `look` while Redis cannot be reached."""

    def _run(self) -> None:
        with connect(self._redis_url) as client:
            while not self._stopping.is_set():
                self._look(client)
                if self._is_away:
                    self._stopping.wait(_LOOK_EVERY_S)
                else:
                    self._listen(client)

    def _listen(self, client: "redis.Redis") -> None:
        """Look after every announcement and after every quiet second, until Redis goes away."""
        try:
            with client.pubsub(ignore_subscribe_messages=True) as announcements:
                announcements.subscribe(self._version_key)
                while not (self._stopping.is_set() or self._is_away):
                    announcements.get_message(timeout=_LOOK_EVERY_S)
                    self._look(client)
        except redis.RedisError:
            return  # the look that follows says so

    def _look(self, client: "redis.Redis") -> None:
        try:
            raw = client.get(self._version_key)
            was_away, self._is_away = self._is_away, False
            self.look(client, None if raw is None else int(raw), was_away)
            self._is_failing = False
        except redis.RedisError as error:
            if not self._is_away:
                log.warning("redis is away", extra={"key": self._version_key, "error": type(error).__name__})
            self._is_away = True
            self._look_without_redis()
        except Exception:  # the loop's edge: what is held stays good, and the next look may go better
            self._complain()
        self._has_looked.set()

    def _look_without_redis(self) -> None:
        try:
            self.look_without_redis()
        except Exception:  # as above
            self._complain()

    def _complain(self) -> None:
        """Once, not every second."""
        if not self._is_failing:
            log.exception("refresh failed", extra={"key": self._version_key})
        self._is_failing = True


class SnapshotFollower(Follower):
    """Follows the catalog.

    `restore` is called when Redis holds no catalog, or may have missed a change while it was away: a process with the
    database gives the function that publishes it again, a worker gives none and waits.
    """

    def __init__(self, redis_url: str, restore: Callable[[], object] | None = None) -> None:
        super().__init__(redis_url, names.CATALOG_VERSION)
        self.current: Snapshot = EMPTY
        self._seen: int | None = None
        self._restore = restore

    def look(self, client: "redis.Redis", version: int | None, was_away: bool) -> None:
        if self._restore is not None and (version is None or was_away):
            self._restore()
            self._load(client)
        elif version is not None and version != self._seen:
            self._load(client)
            self._seen = version

    def _load(self, client: "redis.Redis") -> None:
        text = client.get(names.CATALOG)
        if text is None:
            return
        self.current = Snapshot.from_json(text)
        log.info("catalog loaded", extra={"version": self.current.version, "models": len(self.current.models)})
