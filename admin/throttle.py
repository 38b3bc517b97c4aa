"""Who may still try a password: a few wrong ones close an account for a while, many close an address.

Tries are counted before they are judged, so that many at once gain nothing. While Redis is away nobody is refused:
an operator must get in during an outage, and a guess costs a slow hash still.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import redis
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from admin.connections import state
from protocol import names

log = logging.getLogger("shoal.admin")

WINDOW_S = 900  # from the first wrong try on
MOST_BY_ACCOUNT = 10
MOST_BY_ADDRESS = 100  # a proxy in front may be everybody's address

# KEYS: counters. ARGV: seconds they last. Answers the counts, this try included.
_COUNT = """
local counts = {}
for place, key in ipairs(KEYS) do
  counts[place] = redis.call('INCR', key)
  if counts[place] == 1 then redis.call('EXPIRE', key, ARGV[1]) end
end
return counts
"""


class ThrottledBackend(ModelBackend):
    """Django's own, but for those who have tried too often."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """Raises ValidationError, which a login form shows."""
        if username is None or password is None:
            return None
        limits = _limits(username, request)
        if not _may_try(limits):
            log.warning("login refused: too many tries", extra={"address": _address(request)})
            raise ValidationError(
                f"Too many wrong passwords. Try again in {WINDOW_S // 60} minutes.", code="too_many_tries"
            )
        user = super().authenticate(request, username=username, password=password, **kwargs)
        if user is None:
            log.warning("login failed", extra={"address": _address(request)})
        else:
            _forgive(limits)
        return user


def _limits(username: str, request: HttpRequest | None) -> Mapping[str, int]:
    """How many tries each counter stands. Names are hashed: people type passwords into the wrong field."""
    account = hashlib.sha256(username.casefold().encode()).hexdigest()[:32]
    limits = {names.login_tries("account", account): MOST_BY_ACCOUNT}
    if request is not None:
        limits[names.login_tries("address", _address(request))] = MOST_BY_ADDRESS
    return limits


def _address(request: HttpRequest | None) -> str:
    return str(request.META.get("REMOTE_ADDR") or "unknown") if request is not None else "none"


def _may_try(limits: Mapping[str, int]) -> bool:
    try:
        counts: Any = state().eval(_COUNT, len(limits), *limits, str(WINDOW_S))
    except redis.RedisError as error:
        log.warning("login tries are not counted", extra={"error": type(error).__name__})
        return True
    return all(int(count) <= most for count, most in zip(counts, limits.values(), strict=True))


def _forgive(limits: Mapping[str, int]) -> None:
    """The account's owner is here; of the address only this try was a good one."""
    account, *address = limits
    try:
        with state().pipeline(transaction=False) as pipe:
            pipe.delete(account)
            for counter in address:
                pipe.decr(counter)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("login tries are not forgotten", extra={"error": type(error).__name__})
