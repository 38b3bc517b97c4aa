"""Where messages come in: what a gateway wrote goes to the dispatcher, all else is looked at off the Hub's thread.

Called for every message, so it decides from headers alone; and it never raises, whatever the message is.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from celery.worker import state

from protocol.errors import Cancelled, ShoalError
from protocol.messages import Payload, Request
from protocol.replies import Reply
from workers.bodies import BodyReader
from workers.custody import Custody
from workers.deliveries import Delivery, Outbox
from workers.forwarding import Forwarding
from workers.headers import nominal_request, read_request
from workers.intake import Intake
from workers.receipts import Receipt
from workers.redelivery import Redelivery

log = logging.getLogger("shoal.desk")


@dataclass(frozen=True, slots=True)
class UnknownTask:
    """Stands where Celery's task object would be for a task that nobody registered."""

    name: str
    backend: None = None
    acks_late: bool = True


@dataclass(frozen=True, slots=True)
class Desk:
    """Lives on the Hub's thread."""

    submit: Callable[[Delivery], None]
    cancel: Callable[[str], None]
    outbox: Outbox
    custody: Custody
    bodies: BodyReader
    intake: Intake
    forwarding: Forwarding
    redelivery: Redelivery

    def receive(self, message: Any, task: Any) -> None:
        try:
            request = read_request(message.headers, task.name)
        except ShoalError as error:
            self.refuse(message, task, error)
            return
        if request is None:
            delivery = self._delivery(message, task, nominal_request(message.headers, task.name))
            self.intake.put(self.forwarding.forward, delivery)
        else:
            self._admit(request, message, task)

    def refuse(self, message: Any, task: Any, error: ShoalError) -> None:
        """Answer and acknowledge what cannot be worked on, as far as it says where to answer; it is a dead letter."""
        request = nominal_request(message.headers or {}, task.name)
        log.warning("message refused: %s", error.message, extra={"request_id": request.id or None, "code": error.code})
        if not request.id:
            request = replace(request, reply=None, store=False)  # nobody can ask for it
        delivery = self._delivery(message, task, request)
        delivery.receipt.is_unreadable = True
        self._answer(delivery, error)

    def _admit(self, request: Request, message: Any, task: Any) -> None:
        is_held = self.custody.holds(request.id)  # then the dispatcher knows what to do with it
        delivery = self._delivery(message, task, request)
        if request.id in state.revoked:
            self._answer(delivery, Cancelled("the task was revoked"))
        elif delivery.redelivered and not is_held:
            self.intake.put(self.redelivery.admit, delivery)
        else:
            self.submit(delivery)

    def _delivery(self, message: Any, task: Any, request: Request) -> Delivery:
        route = message.delivery_info or {}
        receipt = Receipt(
            message,
            request,
            task,
            queue=str(route.get("routing_key")),
            cancel_request=self.cancel,
            redelivered=bool(route.get("redelivered")),
        )
        self.custody.take(receipt)
        return Delivery(
            request,
            partial(self._load, receipt),
            receipt=receipt,
            redelivered=receipt.redelivered,
            received=time.monotonic(),
        )

    def _load(self, receipt: Receipt) -> Payload:
        return self.bodies.load(receipt)

    def _answer(self, delivery: Delivery, error: ShoalError) -> None:
        reply = Reply(delivery.request.id, error=error.to_wire())
        self.outbox.reply(delivery, lambda: reply)
