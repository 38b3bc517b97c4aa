"""The seam between the broker side of a worker (Celery, Redis) and its dispatcher, which knows neither."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from protocol.messages import Payload, Request
from protocol.replies import Reply


@dataclass(slots=True, eq=False)
class Delivery:
    """One request held by this worker and not yet acknowledged.

    `load` decodes the body and fetches blobs; it is slow, runs on a prepare thread and raises ShoalError.
    `receipt` belongs to the broker side (message and connection epoch); the dispatcher never looks at it.
    """

    request: Request
    load: Callable[[], Payload]
    receipt: Any = None
    redelivered: bool = False
    received: float = field(default=0.0)  # time.monotonic()


class Outbox(Protocol):
    """Where the dispatcher puts what must leave its thread. Thread-safe; never blocks.

    Every delivery ends in exactly one `reply` or one `give_back`; a `keep` may come before it.
    """

    def started(self, deliveries: Sequence[Delivery]) -> None:
        """These are on the device now (state `running`, Celery's task-started event)."""
        ...

    def reply(self, delivery: Delivery, finish: Callable[[], Reply]) -> None:
        """Call `finish` on the reply thread, write the reply, then acknowledge. `finish` does not raise."""
        ...

    def keep(self, delivery: Delivery, started: float, until: float) -> None:
        """Tell the caller, whose time is over, that this goes on and where its result will be. Unix times."""
        ...

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return these to the broker unanswered; another worker will take them."""
        ...
