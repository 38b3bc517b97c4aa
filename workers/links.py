"""Redis clients of a worker's threads; each thread has its own."""

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

CONNECT_TIMEOUT_S = 2


def connect(url: str, timeout_s: float = 5.0) -> "redis.Redis":
    """Gives up on a silent Redis after `timeout_s`, and tries a broken connection once more: callers know how to wait.

    redis-py's own retries would sleep for seconds inside a call, which no thread here can afford.
    """
    return redis.Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=CONNECT_TIMEOUT_S, retry=Retry(NoBackoff(), 1)
    )
