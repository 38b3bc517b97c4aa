"""Lowered budgets outlive their worker: read once at the start, written beside the dispatcher when memory runs out."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from protocol import ceilings
from protocol.ceilings import Ceiling, Ceilings
from protocol.clock import now as agreed_time
from protocol.spec import ModelSpec
from workers.config import WorkerConfig

log = logging.getLogger("shoal.ceilings")


class Remembering(Protocol):
    """Where the dispatcher looks a model's ceiling up, and says that it has sunk. Never blocks."""

    def get(self, spec: ModelSpec) -> int | None: ...
    def put(self, spec: ModelSpec, cost: int) -> None: ...
    def stop(self) -> None: ...


class KeptCeilings:
    """In a file of the data folder."""

    def __init__(self, config: WorkerConfig) -> None:
        self._memory = config.memory_bytes
        self._file = ceilings.file(config.data, config.device)
        self._known = ceilings.read(self._file)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ceilings")

    def get(self, spec: ModelSpec) -> int | None:
        known = self._known.get(spec.digest)
        return known.cost if known is not None and self._memory <= known.memory else None

    def put(self, spec: ModelSpec, cost: int) -> None:
        ceiling = Ceiling(spec.model, cost, self._memory, agreed_time())
        self._known[spec.digest] = ceiling
        self._writer.submit(self._write, spec.digest, ceiling)

    def stop(self) -> None:
        """All that was put is written."""
        self._writer.shutdown()

    def _write(self, digest: str, ceiling: Ceiling) -> None:
        def added(kept: Ceilings) -> Ceilings:
            return {**kept, digest: ceiling}

        try:
            ceilings.change(self._file, added)
        except OSError as error:  # it holds until this worker ends, and is learned again after
            log.warning("ceiling not remembered", extra={"model": ceiling.model, "error": str(error)})
