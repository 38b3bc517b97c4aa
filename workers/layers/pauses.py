"""Where a long recording may be cut: in its quiet moments, so that no word is."""

import numpy as np

_SEARCHED = 6  # a cut is looked for in the last sixth of a piece
_QUIET_S = 0.1  # of so long a stretch the loudness is taken


def cuts(samples: np.ndarray, longest: int, rate: int) -> list[int]:
    """Where to cut so that no piece is longer than `longest`: in the middle of the quietest stretch near its end."""
    found: list[int] = []
    start, stretch = 0, max(1, int(_QUIET_S * rate))
    while len(samples) - start > longest:
        tail = samples[start + longest - longest // _SEARCHED : start + longest]
        rows = tail[: len(tail) // stretch * stretch].reshape(-1, stretch)
        quietest = len(rows) - 1 - int(np.square(rows).mean(1)[::-1].argmin())  # the last of several
        start += longest - len(tail) + quietest * stretch + stretch // 2
        found.append(start)
    return found
