"""What every worker's last beat said of the models: who has them, and what they cost."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.sim.worker import SimulatedWorker
from workers.claims import UNKNOWN_LOAD_S

HELD = ("waiting", "loading", "loaded")


@dataclass(slots=True)
class Known:
    holders: set[int] = field(default_factory=set)
    size: int = 0  # bytes; 0 when no worker has seen it
    load_s: float = UNKNOWN_LOAD_S
    rate: float | None = None  # cost a second in full batches


class Survey:
    """As stale as beats are; what a model costs stays known when it has left."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def model(self, name: str) -> Known:
        return self._known.get(name, Known())

    def hear(self, workers: Iterable[SimulatedWorker]) -> None:
        for known in self._known.values():
            known.holders = set()
        for worker in workers:
            for model in worker.dispatcher.status()["models"]:
                known = self._known.setdefault(model["model"], Known())
                if model["state"] in HELD:
                    known.holders.add(worker.number)
                known.size = model["bytes"] or known.size
                known.load_s = model["load_s"] or known.load_s
                known.rate = model["rate"] or known.rate
