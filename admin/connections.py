"""Redis as the admin's pages see it: clients that give up soon, because somebody waits for the page."""

import functools

import redis
from django.conf import settings


@functools.lru_cache(maxsize=4)
def client(url: str) -> "redis.Redis":
    """One per URL, with timeouts short enough for a page that is asked for every second."""
    return redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)


def state() -> "redis.Redis":
    return client(settings.SHOAL_REDIS_URL)
