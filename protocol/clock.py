"""The time that all processes of a deployment go by: that of its Redis.

Deadlines and ages are written by one machine and read by another. Each process learns how far its own clock is from
the server's, so that a machine whose clock is minutes off neither drops fresh work as late nor sends any late.
"""

import logging
import time

log = logging.getLogger("shoal.clock")

NEAR_S = 0.5  # what a reply's way may be taken for; a clock this near is believed
FAR_S = 1.0  # worth telling people

_ahead_s = 0.0


def now() -> float:
    """Unix seconds, as Redis would say."""
    return time.time() - _ahead_s


def ahead_s() -> float:
    """How far this machine's clock is ahead of Redis's; 0 while it is near."""
    return _ahead_s


def learn(server: tuple[int, int], asked: float, answered: float) -> None:
    """Take in what `TIME` said, and this machine's time before and after it."""
    global _ahead_s
    ahead = (asked + answered) / 2 - (server[0] + server[1] / 1e6)
    near = NEAR_S + (answered - asked) / 2
    found = 0.0 if abs(ahead) <= near else ahead
    if abs(found) > FAR_S and abs(found - _ahead_s) > FAR_S:
        log.warning("this machine's clock is off; Redis's is gone by", extra={"ahead_s": round(found, 1)})
    if abs(found - _ahead_s) > near:
        _ahead_s = found
