"""Where Redis and the broker are, in the two spellings their libraries want."""

from urllib.parse import parse_qsl, urlencode, urlsplit

REDIS_SCHEMES = ("redis", "rediss", "unix")


def is_redis(url: str) -> bool:
    return url.partition("://")[0] in REDIS_SCHEMES


def kombu_url(url: str) -> str:
    """The URL as Celery and kombu write it; they spell a Unix socket and its database number in their own way."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    query = dict(parse_qsl(parts.query))
    query["virtual_host"] = query.pop("db", "0")
    return f"redis+socket://{parts.netloc}{parts.path}?{urlencode(query)}"
