"""What waits where, read twice a second in the background: any view may look, and no call asks Redis for it.

Between two looks a gateway knows exactly what it waits for itself; what other gateways do is as old as the last look.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from catalog.snapshot import Snapshot
from inference import depths
from inference.broker import LINK_ERRORS
from inference.calls import Accepted
from inference.depths import Depth
from inference.fleet import Fleet
from inference.forecast import Forecast, ahead_in_lane, forecasts
from inference.published import Counts, History
from protocol import clock, demand, names
from protocol.spec import ModelSpec

log = logging.getLogger("shoal.queues")

LOOK_EVERY_S = 0.5
STALE_S = 3.0  # an older look forecasts nothing
DEMAND_S = 600.0  # queues that nobody has published to for so long are looked at only while something waits in them


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in one queue at the broker; `oldest` in unix seconds, None where nobody knows."""

    counts: Counts
    oldest: float | None


@dataclass(frozen=True, slots=True)
class Queues:
    """One look, at `read_at` on the monotonic clock."""

    waiting: Mapping[str, Waiting] = field(default_factory=dict)  # at the broker
    held: Mapping[str, Counts] = field(default_factory=dict)  # by workers, running work included
    forecasts: Mapping[tuple[str, str], Forecast] = field(default_factory=dict)  # by model and lane
    awaited: Mapping[str, int] = field(default_factory=dict)  # cost of it that callers of this process wait for
    read_at: float = float("-inf")

    def is_fresh(self, now: float) -> bool:
        return now - self.read_at <= STALE_S


class QueueReader:
    """Owned by the event loop; `current` is replaced whole, never changed."""

    def __init__(
        self, redis: Redis, broker_url: str, catalog: Callable[[], Snapshot], fleet: Callable[[], Fleet]
    ) -> None:
        self.current = Queues()
        self._redis = redis
        self._depths = depths.connect(broker_url)
        self._catalog = catalog
        self._fleet = fleet
        self._awaited: Counter[str] = Counter()  # cost by queue
        self._published: dict[str, Counts] = {}  # Redis is yet to be told
        self._refused: dict[str, float] = {}  # when, by queue; the same
        self._histories: dict[str, History] = {}
        self._demanded_since = 0.0  # the first look goes back to the beginning

    # -- what calls do -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def awaiting(self, accepted: Accepted) -> Iterator[None]:
        """The cost of a call that waits for its reply stands in its queue for so long."""
        self._awaited[accepted.queue] += accepted.request.cost
        try:
            yield
        finally:
            self._awaited[accepted.queue] -= accepted.request.cost

    def published(self, accepted: Accepted) -> None:
        counts = Counts(1, accepted.request.count, accepted.request.cost)
        self._published[accepted.queue] = self._published.get(accepted.queue, Counts()) + counts

    def refused(self, queue: str) -> None:
        """Demand, though nothing was published."""
        self._refused[queue] = clock.now()

    def forecast(self, model: str, lane: str, now: float) -> Forecast | None:
        """None: not known."""
        return self.current.forecasts.get((model, lane)) if self.current.is_fresh(now) else None

    def ahead(self, spec: ModelSpec, lane: str, forecast: Forecast) -> float:
        """Cost in front of a new request: as it was at the last look, and what callers here began and ended since."""
        awaited = ahead_in_lane(self._awaited, spec, lane)
        return max(forecast.ahead + awaited - ahead_in_lane(self.current.awaited, spec, lane), awaited)

    # -- looking -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.look()
            except LINK_ERRORS as error:
                log.debug("queues not read", extra={"error": type(error).__name__})
            await asyncio.sleep(LOOK_EVERY_S)

    async def close(self) -> None:
        with contextlib.suppress(*LINK_ERRORS):
            await self._depths.close()

    async def look(self) -> None:
        await self._tell()
        now = clock.now()
        queues = sorted({*await self._demanded(), *self.current.waiting})
        self._demanded_since = now - DEMAND_S
        totals = await self._totals(queues)
        awaited = {queue: cost for queue, cost in self._awaited.items() if cost}
        found = await self._depths.read(queues)
        waiting = {queue: self._note(queue, found[queue], totals[queue], now) for queue in queues}
        self._histories = {queue: self._histories[queue] for queue in queues}
        fleet, held = self._fleet(), held_by_workers(self._fleet())
        cost = Counter({queue: one.counts.cost for queue, one in waiting.items()})
        cost.update({queue: one.cost for queue, one in held.items()})
        monotonic = time.monotonic()
        specs = [model.spec for model in self._catalog().models.values()]
        predicted = forecasts(specs, fleet, cost) if fleet.is_fresh(monotonic) else {}
        there = {queue: one for queue, one in waiting.items() if one.counts.messages}
        self.current = Queues(there, held, predicted, awaited, monotonic)

    def _note(self, queue: str, depth: Depth, total: Counts, now: float) -> Waiting:
        history = self._histories.setdefault(queue, History())
        history.note(now, total, depth.messages)
        return Waiting(history.last(depth.messages), depth.oldest or history.oldest)

    async def _tell(self) -> None:
        """What was published and refused since the last look; if it cannot be told it is kept for the next."""
        published, refused = self._published, self._refused
        if not published and not refused:
            return
        self._published, self._refused = {}, {}
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for queue, counts in published.items():
                    demand.count(pipe, queue, counts.messages, counts.items, counts.cost)
                if refused:
                    pipe.zadd(names.DEMAND, refused, gt=True)
                await pipe.execute()
        except (RedisError, OSError):
            self._published = {
                queue: published.get(queue, Counts()) + self._published.get(queue, Counts())
                for queue in {*published, *self._published}
            }
            self._refused = {**refused, **self._refused}
            raise

    async def _demanded(self) -> list[str]:
        found: Any = await self._redis.zrangebyscore(names.DEMAND, self._demanded_since, "+inf")
        return [queue.decode(errors="replace") for queue in found]

    async def _totals(self, queues: Sequence[str]) -> dict[str, Counts]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.hmget(names.published(queue), demand.COUNTED)
            found = await pipe.execute()
        return {
            queue: Counts(*(int(value or 0) for value in values)) for queue, values in zip(queues, found, strict=True)
        }


def held_by_workers(fleet: Fleet) -> dict[str, Counts]:
    """What workers have taken and not yet answered, by queue."""
    found: dict[str, Counts] = {}
    for beat in fleet.beats:
        for queue, held in beat.get("queues", {}).items():
            counts = Counts(held.get("requests", 0), held.get("items", 0), held.get("cost", 0))
            found[queue] = found.get(queue, Counts()) + counts
    return found
