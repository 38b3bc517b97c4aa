"""Doubles for the dispatcher's outside: an outbox that remembers, deliveries made from plain texts."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from catalog.snapshot import Model, Snapshot
from protocol.messages import Payload, Request
from protocol.replies import Reply
from protocol.spec import ModelSpec
from workers.config import WorkerConfig
from workers.deliveries import Delivery
from workers.dispatcher import Dispatcher

Start = Callable[..., Dispatcher]  # models, and fields of WorkerConfig by name

_ids = itertools.count(1)


class RecordingOutbox:
    """Implements Outbox; replies are finished at once and can be awaited by id."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.started_ids: list[str] = []
        self.returned: list[str] = []
        self.kept: list[str] = []
        self._changed = threading.Condition()

    def started(self, deliveries: Sequence[Delivery]) -> None:
        self.started_ids += [delivery.request.id for delivery in deliveries]

    def reply(self, delivery: Delivery, finish: Callable[[], Reply]) -> None:
        with self._changed:
            self.replies.append(finish())
            self._changed.notify_all()

    def keep(self, delivery: Delivery, started: float, until: float) -> None:
        with self._changed:
            self.kept.append(delivery.request.id)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            self.returned += [delivery.request.id for delivery in deliveries]
            self._changed.notify_all()

    def wait_for(self, ids: Sequence[str], timeout: float = 30.0) -> list[Reply]:
        """Replies to `ids`, in that order."""
        with self._changed:
            done = self._changed.wait_for(lambda: set(ids) <= {reply.id for reply in self.replies}, timeout)
            assert done, f"no reply to {set(ids) - {reply.id for reply in self.replies}}"
            by_id = {reply.id: reply for reply in self.replies}
        return [by_id[request_id] for request_id in ids]


def fake_model(
    name: str, *, pinned: bool = False, budget: int | None = None, max_items: int = 256, **load: Any
) -> Model:
    spec = ModelSpec(
        model=name,
        family="fake",
        primitives=("encode",),
        outputs=("dense",),
        dims={"dense": 8},
        load=load,
        budget=budget,
        max_items=max_items,
    )
    return Model(spec, pinned=pinned)


def delivery(
    model: Model, *texts: str, timeout_s: float = 60.0, lane: str = "interactive", key: str | None = None
) -> Delivery:
    now = time.time()
    items: list[dict[str, Any]] = [{"text": text} for text in texts]
    request = Request(
        id=f"request-{next(_ids)}",
        primitive="encode",
        model=model.spec.model,
        digest=model.spec.digest,
        cost=len(texts),
        count=len(texts),
        deadline=now + timeout_s,
        published=now,
        lane=lane,
        key=key,
    )
    return Delivery(request, load=lambda: Payload(items))


def start_dispatcher(tmp_path: Any, outbox: RecordingOutbox, models: Sequence[Model], **config: Any) -> Dispatcher:
    snapshot = Snapshot(1, tuple(models))
    dispatcher = Dispatcher(WorkerConfig(worker_id="w", data=tmp_path, **config), lambda: snapshot, outbox)
    dispatcher.start()
    return dispatcher
