"""Calls and tasks sent to all gateways of a system at once, from a thread, while the test does harm.

Every fifth request is a task (half of those in the bulk lane), all others wait for their answer. Each text is its own,
so the vector that comes back tells whose it is.
"""

import asyncio
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

from bench import load
from bench.outcome import Outcome
from bench.wire import Native, http_request
from tests.service.faults.system import System
from tests.service.harness import wait_until
from workers.families.fake import vector

TASKS_EVERY = 5
CONNECTIONS = 24  # per gateway
LIMIT_S = 300.0  # a run that takes longer has hung
DIMS = 8


@dataclass(slots=True)
class Answer:
    """What came back for one request: a vector, an error's code, a task's id, or nothing (`LOST`)."""

    status: int
    code: str = ""
    vector: np.ndarray | None = None
    task: str | None = None
    took: float = 0.0
    retry_after: bool = False


@dataclass
class Traffic:
    """`texts` replaces the ordinary text of some requests."""

    system: System
    count: int
    texts: Mapping[int, str] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="traffic")
        self._error: BaseException | None = None
        self._started = time.monotonic()

    def text(self, index: int) -> str:
        return self.texts.get(index) or f"request number {index} of {self.system.model.spec.model}"

    def is_right(self, index: int, found: np.ndarray) -> bool:
        return bool(np.allclose(found, vector(self.text(index), DIMS), atol=1e-6))

    @staticmethod
    def is_task(index: int) -> bool:
        return index % TASKS_EVERY == 0

    def start(self) -> "Traffic":
        self._thread.start()
        return self

    def wait_for(self, share: float) -> None:
        """Until this share of the requests has an answer."""
        wait_until(lambda: self._error or len(self.answers) >= share * self.count, LIMIT_S, f"{share:.0%} answered")

    def finish(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the run did not end"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.send(range(self.count))
        except BaseException as error:  # the thread's edge: `finish` raises it
            self._error = error

    def send(self, indexes: Sequence[int]) -> None:
        """These requests, spread over the gateways; returns when each has its answer."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._send(indexes))

    async def _send(self, indexes: Sequence[int]) -> None:
        gateways = self.system.gateways
        shares = [indexes[number :: len(gateways)] for number in range(len(gateways))]
        runs = [self._fire(gateway.url, share) for gateway, share in zip(gateways, shares, strict=True) if share]
        self.outcomes += await asyncio.gather(*runs)

    async def _fire(self, url: str, indexes: Sequence[int]) -> Outcome:
        requests = [self._request(url, index) for index in indexes]

        def take(position: int, status: int, body: bytes) -> None:
            self.answers[indexes[position]] = self._read(status, body)

        outcome = await load.fire(
            url, requests, take, connections=CONNECTIONS, seconds=LIMIT_S, count=len(requests), patience_s=5
        )
        for position, took in zip(outcome.indexes, outcome.took, strict=True):
            self.answers[indexes[position]].took = took
        return outcome

    def _request(self, url: str, index: int) -> bytes:
        model = self.system.model.spec.model
        if not self.is_task(index):
            return Native().request(url, model, self.text(index))
        lane = "bulk" if index % (2 * TASKS_EVERY) else "interactive"
        body = {"primitive": "encode", "model": model, "lane": lane, "items": [{"text": self.text(index)}]}
        return http_request(url, "/v1/tasks", json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _read(self, status: int, body: bytes) -> Answer:
        if status == 200:
            return Answer(status, vector=Native().vectors(body)[0])
        if status == 202:
            return Answer(status, task=json.loads(body)["id"])
        return Answer(status, code=_error_of(body)) if status else Answer(load.LOST)

    def tasks(self) -> dict[str, int]:
        """Ids of accepted tasks, with the request that each is."""
        return {answer.task: index for index, answer in self.answers.items() if answer.task is not None}

    def read_tasks(self, ids: Sequence[str], wait_s: float = 0.0) -> dict[str, dict[str, Any]]:
        """Tasks as the gateways show them; those that could not be read are missing."""
        url, found = self.system.gateways[0].url, {}
        query = f"?wait={wait_s:g}" if wait_s else ""
        requests = [http_request(url, f"/v1/tasks/{task}{query}", b"", method="GET") for task in ids]

        def take(position: int, status: int, body: bytes) -> None:
            if status == 200:
                found[ids[position]] = json.loads(body)

        load.run(url, requests, take, connections=CONNECTIONS, seconds=LIMIT_S, count=len(requests), patience_s=90)
        return found


def _error_of(body: bytes) -> str:
    """The code of a typed error; the wire of tasks and of the native dialect is the same JSON."""
    return str(json.loads(body)["error"]["code"])
