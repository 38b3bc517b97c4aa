"""Which queues a worker consumes from: those of its pool's models that somebody asks for, and the intake.

A subscription to a queue nobody uses costs a key in every pop, so demand that has gone quiet ends it.
"""

from collections.abc import Iterable, Mapping

from catalog.snapshot import Snapshot
from protocol import names

QUIET_S = 600.0
UNKNOWN_S = 10.0  # a gateway may know a new model a moment before this worker does
BROKEN_S = 60.0  # before a queue is tried again that the broker refused


def models_by_queue(catalog: Snapshot, pool: str) -> dict[str, tuple[str, str]]:
    """Every queue of the pool, with its model and lane."""
    return {
        names.queue(pool, model.spec.model, lane): (model.spec.model, lane)
        for model in catalog.models.values()
        if model.spec.pool == pool
        for lane in names.LANES
    }


class Subscriptions:
    """Keeps the demand seen by queue; `now` is monotonic. Lives on the Hub's thread."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._known: Mapping[str, tuple[str, str]] = {}
        self._version = -1
        self._demanded: dict[str, float] = {}
        self._unknown: dict[str, float] = {}  # asked for, but of no model known here
        self._broken: dict[str, float] = {}

    def model(self, queue: str) -> str:
        """The model of a queue that `wanted` named."""
        return self._known[queue][0]

    def lane(self, queue: str) -> str:
        return self._known[queue][1]

    def ask(self, queues: Iterable[str], catalog: Snapshot, now: float) -> list[str]:
        """Note demand; answers those of the queues that are this worker's to serve."""
        self._learn(catalog)
        asked = dict.fromkeys(queues)
        served = [queue for queue in asked if queue in self._known and now >= self._broken.get(queue, now)]
        self._demanded.update(dict.fromkeys(served, now))
        self._unknown.update({queue: now for queue in asked if self._may_become_ours(queue)})
        return served

    def ask_again(self, catalog: Snapshot, now: float) -> list[str]:
        """What `ask` would answer now for queues it did not know a moment ago."""
        if not self._unknown:
            return []
        self._learn(catalog)
        known = [queue for queue in self._unknown if queue in self._known]
        self._unknown = {
            queue: at for queue, at in self._unknown.items() if queue not in known and now - at < UNKNOWN_S
        }
        return self.ask(known, catalog, now)

    def all(self) -> list[str]:
        """Every queue of the pool, wanted or not."""
        return list(self._known)

    def wanted(self) -> list[str]:
        """Queues to consume from, the urgent lane first."""
        return sorted(self._demanded, key=lambda queue: names.LANES.index(self.lane(queue)))

    def quiet(self, now: float) -> list[str]:
        return [queue for queue, at in self._demanded.items() if now - at > QUIET_S]

    def end(self, queue: str) -> None:
        del self._demanded[queue]

    def break_off(self, queue: str, now: float) -> None:
        """The broker refuses it and ends the connection: leave it alone for a while."""
        self._demanded.pop(queue, None)
        self._broken[queue] = now + BROKEN_S

    def _may_become_ours(self, queue: str) -> bool:
        return queue not in self._known and queue.startswith(f"{names.INTAKE_QUEUE}.{self._pool}.")

    def _learn(self, catalog: Snapshot) -> None:
        """Queues of models that left the catalog stay known while they are consumed: their requests want an answer."""
        if catalog.version != self._version:
            self._version = catalog.version
            kept = {queue: self._known[queue] for queue in self._demanded}
            self._known = {**kept, **models_by_queue(catalog, self._pool)}
