"""A thread for the messages that cannot be decided from their headers on the Hub's thread."""

import logging
import queue
import threading
import time
from collections.abc import Callable

import redis
from kombu.exceptions import KombuError

from protocol.errors import InferenceError, ShoalError
from protocol.replies import Reply
from workers.deliveries import Delivery, Outbox

log = logging.getLogger("shoal.intake")

PAUSE_S = 0.5  # after the broker or Redis failed us
PASSING = (OSError, KombuError, redis.RedisError)

Handle = Callable[[Delivery], None]
Note = Callable[[], None]


class Intake:
    """Handlers run one at a time. A ShoalError answers the delivery; without the broker it goes back to its queue."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: queue.SimpleQueue[tuple[Handle, Delivery] | Note] = queue.SimpleQueue()
        self._is_draining = False
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, handle: Handle, delivery: Delivery) -> None:
        """Never blocks."""
        self._waiting.put((handle, delivery))

    def note(self, note: Note) -> None:
        """Run this on the intake's thread, in its turn."""
        self._waiting.put(note)

    def drain(self, last: Note) -> None:
        """From now on deliveries go back to the broker untouched; `last` runs on the thread, for what handlers keep."""
        self._is_draining = True
        self._waiting.put(last)

    def _run(self) -> None:
        while True:
            entry = self._waiting.get()
            if isinstance(entry, tuple):
                self._serve(*entry)
            else:
                self._heed(entry)

    def _serve(self, handle: Handle, delivery: Delivery) -> None:
        if self._is_draining:
            self._outbox.give_back([delivery])
            return
        try:
            handle(delivery)
        except ShoalError as error:
            self._answer(delivery, error)
        except PASSING as error:
            log.warning("broker or redis away", extra={"error": type(error).__name__})
            self._outbox.give_back([delivery])
            time.sleep(PAUSE_S)
        except Exception:  # the loop's edge
            log.exception("intake failed", extra={"request_id": delivery.request.id})
            self._answer(delivery, InferenceError("the task could not be taken in"))

    def _heed(self, note: Note) -> None:
        try:
            note()
        except Exception:  # the loop's edge
            log.exception("note failed")

    def _answer(self, delivery: Delivery, error: ShoalError) -> None:
        reply = Reply(delivery.request.id, error=error.to_wire())
        self._outbox.reply(delivery, lambda: reply)
