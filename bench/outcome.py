"""What a load run met, response by response."""

import math
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """What a run met. `ended`, `took`, `statuses` and `indexes` are in step: one place per response."""

    started: float = field(default_factory=time.monotonic)
    ended: "array[float]" = field(default_factory=lambda: array("d"))  # seconds since `started`
    took: "array[float]" = field(default_factory=lambda: array("d"))
    statuses: "array[int]" = field(default_factory=lambda: array("H"))
    indexes: "array[int]" = field(default_factory=lambda: array("L"))
    wrong: list[str] = field(default_factory=list)
    unanswered: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0  # of this process

    @property
    def answered(self) -> Counter[int]:
        return Counter(self.statuses)

    @property
    def good(self) -> int:
        return self.answered[200]

    @property
    def rate(self) -> float:
        """Good responses per second."""
        return self.good / self.seconds if self.seconds else 0.0

    def rate_between(self, start: float, end: float) -> float:
        """Good responses per second that came in this part of the run, as seconds since its start."""
        came = zip(self.ended, self.statuses, strict=True)
        return sum(status == 200 and start <= ended < end for ended, status in came) / (end - start)

    def percentile(self, share: float) -> float:
        """Seconds within which this share of the good responses came; NaN when there are none."""
        took = sorted(took for took, status in zip(self.took, self.statuses, strict=True) if status == 200)
        return took[min(int(len(took) * share), len(took) - 1)] if took else math.nan

    def gap_after(self, since: float) -> float:
        """Seconds from `since` (monotonic) to the first good response that was also asked for after it; inf if none."""
        after = since - self.started
        for ended, took, status in zip(self.ended, self.took, self.statuses, strict=True):
            if status == 200 and ended - took >= after:
                return ended - after
        return math.inf

    def summary(self) -> str:
        statuses = ", ".join(f"{status or 'lost'}: {count}" for status, count in sorted(self.answered.items()))
        return (
            f"{self.rate:.1f}/s over {self.seconds:.1f} s, p50 {self.percentile(0.5) * 1e3:.1f} ms, "
            f"p99 {self.percentile(0.99) * 1e3:.1f} ms, statuses {{{statuses}}}, wrong {len(self.wrong)}, "
            f"unanswered {self.unanswered}, own CPU {self.cpu_s / max(len(self.statuses), 1) * 1e6:.0f} µs each"
        )
