"""One broker message in this worker's hands, and what Celery's own tools ask of a running task."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.messages import Request
from protocol.native import Asked


@dataclass(slots=True, eq=False, weakref_slot=True)
class Receipt:
    """The broker's side of a delivery. Lives on the Hub's thread; `answer` is set by the reply thread before it."""

    message: Any
    request: Request
    task: Any  # Celery's task object: remote control asks it for its backend
    queue: str
    cancel_request: Callable[[str], None]
    redelivered: bool = False
    is_counted: bool = False  # this delivery is on the request's attempt counter
    attempts: int = 1  # how often it was started, this time included
    is_unreadable: bool = False  # the message itself; its caller may have done nothing wrong
    asked: Asked | None = None  # what a stored result repeats of the payload
    blob: str | None = None  # reference of a payload that waited in the blob store
    is_kept: bool = False  # its caller was told that the result will be stored
    is_dead: bool = False  # given up on, and kept as a dead letter
    error: str | None = None  # code of the answer; None: it went well
    forward_s: float = 0.0
    time_start: float | None = None
    acknowledged: bool = False
    eventer: Any = None  # Celery sets it after a reconnect

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def name(self) -> str:
        return str(self.task.name)

    @property
    def arguments(self) -> str:
        """What logs, events and Flower show: never a caller's text, so never the header a plain client wrote."""
        return f"({self.request.model!r}, {self.request.count} items)"

    def start(self) -> None:
        self.time_start = time.time()

    def info(self, safe: bool = False) -> dict[str, Any]:
        """One line of `celery inspect active` or `reserved`."""
        return {
            "id": self.id,
            "name": self.name,
            "type": self.name,
            "args": self.arguments,
            "kwargs": "{}",
            "hostname": None,
            "time_start": self.time_start,
            "acknowledged": self.acknowledged,
            "delivery_info": {"routing_key": self.queue, "redelivered": self.redelivered},
            "worker_pid": os.getpid() if self.time_start else None,
        }

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """`revoke(terminate=True)`: no process dies for it; work that is not on the device yet is dropped."""
        self.cancel_request(self.id)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Celery's cold shutdown: the message stays unacknowledged, so another worker takes it."""
