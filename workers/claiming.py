"""Which queues this worker takes from: those of the models it has, and now and then one that others leave waiting.

What is decided here is decided by `claims`; this remembers what was seen of the queues. Lives on the Hub's thread.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from protocol import clock, names
from workers.batching import LANE_WEIGHTS
from workers.claims import SETTLE_S, Offer, Standing, best_claim
from workers.neighbours import Known, News
from workers.subscriptions import Subscriptions

CLAIM_S = 1.0  # within it the dispatcher has met what was claimed
NEW_S = 0.1  # news that a claim may go by
PATIENCE_S = 0.5  # for such news: without Redis there is none, and work must be taken all the same
CLOCKS_AGREE_S = 1.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a broker says of a queue: its messages, and when the oldest was published; None where it cannot tell."""

    messages: int
    published: float | None = None


@dataclass(slots=True)
class Watch:
    """What was seen of a queue since it was noticed."""

    since: float
    look_at: float
    fell: float  # when its depth was last seen to fall
    backlog: Backlog = Backlog(0)

    def see(self, backlog: Backlog, now: float) -> None:
        if backlog.messages < self.backlog.messages:
            self.fell = now
        self.backlog = backlog

    def waited_s(self, known: Known, now: float, wall: float) -> float:
        """How long the oldest message has waited.

        RabbitMQ does not say. There it is as long as the depth has not fallen, for then nobody took anything; or as
        long as those who have the model need for what lies before the newest, if the queue was never seen empty since.
        """
        published = self.backlog.published
        if published is not None and published < wall + CLOCKS_AGREE_S:
            return max(wall - published, 0.0)
        return max(now - self.fell, min(now - self.since, known.work_s(self.backlog.messages)))


class Claiming:
    """`now` is monotonic."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        standing: Callable[[], Standing],
        news: Callable[[], News],
        nudge: Callable[[], None],
    ) -> None:
        self._subscriptions = subscriptions
        self._standing = standing
        self._news = news
        self._nudge = nudge
        self._watches: dict[str, Watch] = {}
        self._looked: dict[str, float] = {}
        self._claimed: dict[str, float] = {}  # models, until the dispatcher has them
        self._nudged: float | None = None  # news was asked for, for a claim to be made
        self._others: frozenset[str] = frozenset()

    @property
    def is_alone(self) -> bool:
        """No other worker of the pool beats: there is nobody to leave anything to."""
        return not self._news().others

    def takes(self, queue: str, now: float) -> bool:
        """Whether messages of this queue are taken at once."""
        if self.is_alone:
            return True
        model = self._subscriptions.model(queue)
        return model in self._standing().here or now - self._claimed.get(model, -math.inf) < CLAIM_S

    def claimed(self) -> list[str]:
        """Models that may not show in the dispatcher's standing yet; callable from any thread."""
        return list(self._claimed)

    def somebody_left(self) -> bool:
        """Whether another worker is gone since this was last asked."""
        before, self._others = self._others, self._news().others
        return not before <= self._others

    # -- what is seen of queues --------------------------------------------------------------------------------

    def notice(self, queues: Iterable[str], every_s: float, now: float) -> None:
        """Something may wait there; it is looked at after a moment in which others may take it."""
        for queue in queues:
            if queue not in self._watches:
                look_at = max(now + SETTLE_S, self._looked.get(queue, -math.inf) + every_s)
                self._watches[queue] = Watch(now, look_at, fell=now)

    def due(self, most: int, now: float) -> list[str]:
        """Queues to look into now, the longest overdue first."""
        due = [queue for queue, watch in self._watches.items() if watch.look_at <= now]
        return sorted(due, key=lambda queue: self._watches[queue].look_at)[:most]

    def see(self, backlogs: Mapping[str, Backlog], every_s: float, now: float) -> None:
        for queue, backlog in backlogs.items():
            self._looked[queue] = now
            if backlog.messages:
                self._watches[queue].see(backlog, now)
                self._watches[queue].look_at = now + every_s
            else:
                del self._watches[queue]

    def forget(self, queue: str) -> None:
        self._watches.pop(queue, None)
        self._looked.pop(queue, None)

    # -- claims ------------------------------------------------------------------------------------------------

    def claim(self, now: float) -> str | None:
        """A queue whose messages are taken from now on, if there is one that nobody else should be left to take."""
        standing, news = self._standing(), self._news()
        self._claimed = {
            model: at for model, at in self._claimed.items() if model not in standing.here and now - at < CLAIM_S
        }
        if self._claimed or not standing.can_load:
            return None
        offers = (self._offer(queue, standing, news, now) for queue in self._waiting() if not self.takes(queue, now))
        offer = best_claim(offers, self._pressing(standing, news, now))
        if offer is not None and not self._is_sure(news, now):
            return None
        self._nudged = None
        if offer is None:
            return None
        self._claimed[self._subscriptions.model(offer.queue)] = now
        self._nudge()
        return offer.queue

    def _waiting(self) -> list[str]:
        return [queue for queue, watch in self._watches.items() if watch.backlog.messages]

    def _offer(self, queue: str, standing: Standing, news: News, now: float) -> Offer:
        watch, model = self._watches[queue], self._subscriptions.model(queue)
        known = news.model(model)
        return Offer(
            queue,
            waited_s=watch.waited_s(known, now, clock.now()),
            backlog_s=known.work_s(watch.backlog.messages),
            load_s=standing.wakes.get(model, known.load_s),
            lost_s=standing.lost_s(known.size),
            lane=self._lane(queue),
            held_elsewhere=known.held_elsewhere,
        )

    def _pressing(self, standing: Standing, news: News, now: float) -> float:
        """The weighted age of the oldest live work for models that are here, held already or not."""
        waits = [
            self._watches[queue].waited_s(news.model(self._subscriptions.model(queue)), now, clock.now())
            for queue in self._waiting()
            if self._lane(queue) == 0 and self.takes(queue, now)
        ]
        return max([standing.pressing, *(LANE_WEIGHTS[0] * wait for wait in waits)])

    def _is_sure(self, news: News, now: float) -> bool:
        """Others may have claimed it a moment ago, so a claim waits for fresh news, though not for long."""
        if now - news.heard < NEW_S:
            return True
        if self._nudged is None:
            self._nudged = now
            self._nudge()
        return news.heard >= self._nudged or now - self._nudged > PATIENCE_S

    def _lane(self, queue: str) -> int:
        return names.LANES.index(self._subscriptions.lane(queue))
