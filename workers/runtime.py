"""All parts of a device worker's process: one object, started and ended in order."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from catalog.snapshot import Snapshot
from protocol.names import LANES
from protocol.names import queue as queue_of
from workers.bridge import Bridge
from workers.brokers import Holdings
from workers.claiming import Claiming
from workers.custody import Custody
from workers.deliveries import Delivery
from workers.desk import Desk
from workers.dispatcher import Dispatcher
from workers.heartbeat import Heartbeat
from workers.intake import Intake
from workers.leases import Leases
from workers.neighbours import Known, Neighbours
from workers.replies import Outbox
from workers.subscriptions import Subscriptions
from workers.wake import Cancelled, Wake

log = logging.getLogger("shoal.worker")

WEDGED_S = 30.0
FLUSH_S = 5.0
TURN_S = 0.1  # between acknowledgements while draining


class Thread(Protocol):
    """A part that lives on a thread of its own."""

    @property
    def alive(self) -> bool: ...


class Runtime:
    """`bootstrap` sets the parts; Celery's consumer sets itself, `is_consuming` and `hub_ticked`."""

    bridge: Bridge
    custody: Custody
    holdings: Holdings
    subscriptions: Subscriptions
    neighbours: Neighbours
    claiming: Claiming
    outbox: Outbox
    dispatcher: Dispatcher
    intake: Intake
    desk: Desk
    wake: Wake
    heartbeat: Heartbeat
    leases: Leases | None  # on a Redis broker
    catalog: Callable[[], Snapshot]
    pool: str
    prefetch: int
    drain_s: float

    consumer: Any = None
    is_consuming = False
    hub_ticked = 0.0

    def __init__(self) -> None:
        self.cancelled = Cancelled()
        self._drained = False

    def start(self) -> None:
        self.dispatcher.start()
        self.outbox.start()
        self.intake.start()
        self.wake.start()
        if self.leases is not None:
            self.leases.start()
        self.heartbeat.start()
        self.neighbours.start()

    # -- between threads ---------------------------------------------------------------------------------------

    def submit(self, delivery: Delivery) -> None:
        """Hand over to the dispatcher. The cancels are looked up last, so that one that comes now is not missed."""
        self.dispatcher.submit(delivery)
        if delivery.request.id in self.cancelled:
            self.dispatcher.cancel(delivery.request.id)

    def on_redelivered_end(self, request_id: str) -> None:
        """From any thread: one of those that are let in a few at a time is done."""
        self.intake.note(partial(self.desk.redelivery.ended, request_id))

    def on_queues(self, queues: Iterable[str]) -> None:
        """From the wake thread."""
        if self.consumer is not None:
            self.bridge.put(partial(self.consumer.wake, queues))

    def beat(self) -> dict[str, Any]:
        held = {"queues": self.custody.queues(), "consuming": self.is_consuming}
        return {**self.dispatcher.status(), **held}

    def held_models(self) -> dict[str, Known]:
        """What other workers are told, from the neighbours' thread; 0 and None stand for what is not known yet."""
        facts = {model["model"]: model for model in self.dispatcher.status()["models"]}
        names = self.dispatcher.standing().here.union(self.claiming.claimed())
        return {name: self._known(name, facts.get(name, {})) for name in names}

    def mean_cost(self, model: str) -> float | None:
        """Of its messages, in the most urgent lane that had any."""
        means = (self.custody.mean_cost(queue_of(self.pool, model, lane)) for lane in LANES)
        return next((mean for mean in means if mean is not None), None)

    def _known(self, name: str, facts: dict[str, Any]) -> Known:
        return Known(facts.get("bytes", 0), facts.get("load_s", 0.0), facts.get("rate"), self.mean_cost(name))

    def ailment(self) -> str | None:
        """Why this process should end, if it should. A broker that is away is no reason."""
        if self._drained:
            return None
        dead = [name for name, part in self._threads().items() if part is not None and not part.alive]
        if dead:
            return f"its thread died: {dead[0]}"
        if self.is_consuming and time.monotonic() - self.hub_ticked > WEDGED_S:
            return f"the event loop has not turned for {WEDGED_S:g} s"
        return None

    def _threads(self) -> dict[str, Thread | None]:
        """Without any one of them requests would wait in vain, or be lost."""
        return {
            "dispatcher": self.dispatcher,
            "replies": self.outbox,
            "intake": self.intake,
            "wake": self.wake,
            "leases": self.leases,
        }

    # -- the end -----------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Finish what is on the device, give the rest back, acknowledge. The Hub has stopped; this thread stands in."""
        self._drained = True
        self.wake.stop()
        self.neighbours.leave()
        self.intake.drain(partial(self.desk.redelivery.drain, self.outbox))
        draining = threading.Thread(target=self._drain, name="drain")
        draining.start()
        while draining.is_alive():
            self._turn()
            draining.join(TURN_S)
        self._turn()
        if self.leases is not None:
            self.leases.stop()
        self.neighbours.stop()
        self.heartbeat.stop()
        log.info("worker drained")

    def abandon(self) -> None:
        """End without finishing: leases run out, other workers take over."""
        self._drained = True
        self.dispatcher.drain(0)
        self.neighbours.stop()
        self.heartbeat.stop()

    def _drain(self) -> None:
        self.dispatcher.drain(self.drain_s)
        self.outbox.flush(FLUSH_S)

    def _turn(self) -> None:
        """One turn of what the Hub would do: receipts on their way back to the broker."""
        broker = self.custody.broker
        if broker is None:
            return
        try:
            self.bridge.run()
            broker.flush()
            broker.keep_alive()
        except Exception as error:  # without a broker there is nobody to give back to; it will notice by itself
            log.warning("broker lost while draining", extra={"error": type(error).__name__})
