"""Who used how much: counted in memory for each answered call, handed over now and then, far from any request."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from inference.calls import Outcome

log = logging.getLogger("shoal.usage")

HAND_OVER_EVERY_S = 10.0

Amounts = Mapping[tuple[str, str], tuple[int, int]]
Record = Callable[[Amounts], None]


class UsageMeter:
    """Owned by the event loop; `record` runs in a thread, and takes items and tokens by key prefix and model."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._amounts: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, outcome: Outcome, model: str) -> None:
        key = (outcome.call.key.prefix if outcome.call.key else "", model)
        items, tokens = self._amounts.get(key, (0, 0))
        self._amounts[key] = (items + len(outcome.results), tokens + outcome.tokens)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(HAND_OVER_EVERY_S)
            await self.hand_over()

    async def hand_over(self) -> None:
        """What cannot be recorded now is kept for the next time."""
        amounts, self._amounts = self._amounts, {}
        if not amounts:
            return
        try:
            await asyncio.to_thread(self._record, amounts)
        except Exception:  # the loop's edge: a database that is away must not cost the gateway its loop
            log.exception("usage not recorded")
            for key, (items, tokens) in amounts.items():
                more_items, more_tokens = self._amounts.get(key, (0, 0))
                self._amounts[key] = (items + more_items, tokens + more_tokens)
