"""The outbox: one thread that finishes results, writes replies and only then lets messages be acknowledged."""

import contextlib
import itertools
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from protocol import clock, dead_letters, names, replies, tasks
from protocol.errors import GatewayTimeout, InferenceError
from protocol.messages import Request
from protocol.replies import Reply
from workers import results
from workers.bridge import Bridge
from workers.config import WorkerConfig
from workers.custody import Custody
from workers.dead_letters import is_dead, keep_arguments
from workers.deliveries import Delivery
from workers.links import connect
from workers.receipts import Receipt

log = logging.getLogger("shoal.replies")

BURST = 256
MAILBOX_TTL_S = 60
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
# Redis is there but takes no writes for now; every other refusal is about the key and would come again.
PASSING = (redis.ConnectionError, redis.TimeoutError, redis.OutOfMemoryError, redis.ReadOnlyError)
PASSING_CODES = ("MISCONF", "NOREPLICAS", "BUSY", "MASTERDOWN", "TRYAGAIN")


@dataclass(frozen=True, slots=True)
class Answer:
    delivery: Delivery
    finish: Callable[[], Reply]


@dataclass(frozen=True, slots=True)
class Letter:
    """An answer, rendered for its mailbox and, if somebody may poll for it, for the result store."""

    receipt: Receipt
    packed: bytes
    stored: bytes | None
    dead: tuple[Any, ...] | None = None  # how it is kept when the request was given up on


@dataclass(frozen=True, slots=True)
class Started:
    """Requests whose tasks somebody may be polling."""

    ids: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A call whose deadline passed on the device; its caller is told where to look. Unix times."""

    request: Request
    started: float
    until: float

    def word(self) -> bytes:
        request_id = self.request.id
        message = f"no reply before the deadline; the work goes on, and its result will be at /v1/tasks/{request_id}"
        error = GatewayTimeout(message, extra={"task_id": request_id})
        return replies.pack_one(Reply(request_id, error=error.to_wire()))


@dataclass(frozen=True, slots=True)
class Uncounted:
    """A request given back: its worker did not vanish with it."""

    id: str


Note = Started | Kept | Uncounted


class Outbox:
    """Implements `workers.deliveries.Outbox`.

    What waits here is bounded by what the worker holds: while replies cannot be written nothing is acknowledged, so
    the broker sends no more.
    """

    def __init__(self, redis_url: str, ttl_s: int, bridge: Bridge, custody: Custody, config: WorkerConfig) -> None:
        self._redis = connect(redis_url)
        self._ttl_s = ttl_s
        self._bridge = bridge
        self._custody = custody
        self._worker_id, self._pool = config.worker_id, config.pool
        self._waiting: queue.SimpleQueue[Answer | Note | threading.Event] = queue.SimpleQueue()
        self._gives_up = threading.Event()
        self.on_redelivered_end: Callable[[str], None] = lambda request_id: None
        self.on_written: Callable[[Receipt], None] = lambda receipt: None
        self._thread = threading.Thread(target=self._run, name="replies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # -- what the dispatcher calls -----------------------------------------------------------------------------

    def started(self, deliveries: Sequence[Delivery]) -> None:
        self._bridge.put_aside(partial(self._custody.start, [delivery.receipt for delivery in deliveries]))
        stored = tuple(delivery.request.id for delivery in deliveries if delivery.request.store)
        if stored:
            self._waiting.put(Started(stored, clock.now()))

    def reply(self, delivery: Delivery, finish: Callable[[], Reply]) -> None:
        self._waiting.put(Answer(delivery, finish))
        if delivery.redelivered:
            self.on_redelivered_end(delivery.request.id)

    def keep(self, delivery: Delivery, started: float, until: float) -> None:
        delivery.receipt.is_kept = True
        self._waiting.put(Kept(delivery.request, started, until))

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.receipt.is_counted:
                self._waiting.put(Uncounted(delivery.request.id))
            if delivery.redelivered:
                self.on_redelivered_end(delivery.request.id)
        self._bridge.put(partial(self._custody.give_back, [delivery.receipt for delivery in deliveries]))

    def flush(self, timeout_s: float) -> None:
        """Return when everything put so far is written, or after `timeout_s` give up on it for good."""
        flushed = threading.Event()
        self._waiting.put(flushed)
        if not flushed.wait(timeout_s):
            log.error("replies not written: their requests will run again")
            self._gives_up.set()

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            burst = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(burst) < BURST:
                    burst.append(self._waiting.get_nowait())
            try:
                self._process(burst)
            except Exception:  # the loop's edge: what was not acknowledged comes again
                log.exception("burst of replies failed")

    def _process(self, burst: list[Answer | Note | threading.Event]) -> None:
        letters = [_letter(entry, self._worker_id) for entry in burst if isinstance(entry, Answer)]
        notes = [entry for entry in burst if isinstance(entry, Note)]
        if (letters or notes) and self._write_for_sure(letters, notes):
            self._bridge.put(partial(self._custody.settle, [letter.receipt for letter in letters]))
            for letter in letters:
                self.on_written(letter.receipt)
        for entry in burst:
            if isinstance(entry, threading.Event):
                entry.set()

    def _write_for_sure(self, letters: list[Letter], notes: list[Note]) -> bool:
        """Write, again and again while Redis is away. False when given up."""
        for attempt in itertools.count():
            try:
                self._write(letters, notes)
                return True
            except redis.RedisError as error:
                if attempt == 0:
                    log.warning("replies wait for redis", extra={"error": type(error).__name__})
            if self._gives_up.wait(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]):
                break
        return False

    def _write(self, letters: list[Letter], notes: list[Note]) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for note in notes:
                self._write_note(pipe, note)
            for mailbox, packed in _mail(letters, notes).items():
                pipe.rpush(mailbox, replies.join(packed))
                pipe.expire(mailbox, MAILBOX_TTL_S)
            for letter in letters:
                if letter.dead is not None:
                    pipe.eval(dead_letters.KEEP, *letter.dead)
                if letter.stored is not None:
                    pipe.eval(*_store(letter, letter.stored), self._ttl_s)
            _check(pipe.execute(raise_on_error=False))

    def _write_note(self, pipe: Any, note: Note) -> None:
        match note:
            case Started():
                for request_id in note.ids:
                    pipe.eval(results.MARK_RUNNING, 1, names.task(request_id), note.at)
            case Kept():
                known = {"state": "running", "started": note.started, "deadline": note.until}
                tasks.remember(pipe, note.request, self._pool, note.until + self._ttl_s, **known)
            case Uncounted():
                pipe.decr(names.attempts(note.id))
                pipe.expire(names.attempts(note.id), self._ttl_s)


def _mail(letters: Sequence[Letter], notes: Sequence[Note]) -> Mapping[str, list[bytes]]:
    """What goes into which mailbox."""
    mail: defaultdict[str, list[bytes]] = defaultdict(list)
    for note in notes:
        if isinstance(note, Kept) and note.request.reply is not None:
            mail[note.request.reply].append(note.word())
    for letter in letters:
        if letter.receipt.request.reply is not None and not letter.receipt.is_kept:
            mail[letter.receipt.request.reply].append(letter.packed)
    return mail


def _store(letter: Letter, stored: bytes) -> tuple[Any, ...]:
    """What a script that stores a result is called with, the time it is kept left out."""
    keys = names.task_result(letter.receipt.id), names.task(letter.receipt.id)
    if letter.receipt.request.store:
        return (tasks.STORE, 1, keys[0], stored)
    return (tasks.STORE_IF_KNOWN, 2, *keys, stored)


def _letter(answer: Answer, worker_id: str) -> Letter:
    """The answer as it will be written; finishing and rendering run a family's code, so anything may go wrong."""
    receipt: Receipt = answer.delivery.receipt
    try:
        return _written(receipt, answer.finish(), worker_id)
    except Exception:
        log.exception("answer could not be put together", extra={"request_id": receipt.id})
        error = InferenceError("the result could not be put together")
        return _written(receipt, Reply(receipt.id, error=error.to_wire()), worker_id)


def _written(receipt: Receipt, reply: Reply, worker_id: str) -> Letter:
    request = receipt.request
    receipt.error = reply.error["code"] if reply.error else None
    receipt.forward_s = reply.timing.get("forward", 0.0) / 1e3
    receipt.is_dead = is_dead(receipt, reply)
    return Letter(
        receipt,
        packed=replies.pack_one(reply) if request.reply is not None else b"",
        stored=results.stored_form(request, reply, receipt.asked) if request.store or _is_late(receipt) else None,
        dead=keep_arguments(receipt, reply, worker_id) if receipt.is_dead else None,
    )


def _is_late(receipt: Receipt) -> bool:
    """Whether its caller may have been told that the result will be stored, here or by a worker that vanished."""
    return receipt.request.reply is not None and (receipt.is_kept or clock.now() > receipt.request.deadline)


def _check(outcomes: list[Any]) -> None:
    """Raise the first refusal that may pass; log the others, which would come again."""
    refusals = [outcome for outcome in outcomes if isinstance(outcome, redis.RedisError)]
    for refusal in refusals:
        if isinstance(refusal, PASSING) or str(refusal).startswith(PASSING_CODES):
            raise refusal
    for refusal in refusals:
        log.error("reply refused by redis", extra={"error": str(refusal)})
