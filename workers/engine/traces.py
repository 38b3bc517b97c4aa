"""A trace is logged once: the halves of a batch that failed fail alike, and so do the batches after it."""

import logging
import time
import traceback
from collections.abc import Callable

log = logging.getLogger("shoal.engine")

AGAIN_S = 60.0  # then it is shown once more, as logs are rotated
MOST = 64


class Traces:
    """Without messages, unless debugging: libraries quote customers' inputs in them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: dict[str, tuple[int, float]] = {}  # batch it was shown for, and when

    def log(self, batch: int, error: BaseException) -> None:
        frames = f"{type(error).__name__} at\n" + "".join(traceback.format_tb(error.__traceback__))
        first, at = self._shown.get(frames, (batch, float("-inf")))
        if self._clock() - at < AGAIN_S:
            log.warning("forward of batch %d raised %s as batch %d did", batch, type(error).__name__, first)
        else:
            log.warning("forward of batch %d raised %s", batch, frames)
            self._shown.pop(frames, None)
            self._shown[frames] = (batch, self._clock())
        while len(self._shown) > MOST:
            del self._shown[next(iter(self._shown))]
        log.debug("%s", error)
