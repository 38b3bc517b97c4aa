"""Section G's cases that need a real engine process: what it really holds, what a forward really costs."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from protocol.messages import Payload
from tests.unit.workers_doubles import RecordingOutbox, Start, delivery, fake_model
from workers.deliveries import Delivery
from workers.dispatcher import Dispatcher

MIB = 1 << 20


def ask(dispatcher: Dispatcher, outbox: RecordingOutbox, *deliveries: Delivery) -> list[Any]:
    for one in deliveries:
        dispatcher.submit(one)
    replies = outbox.wait_for([one.request.id for one in deliveries])
    return [reply.error for reply in replies]


def pid_of(dispatcher: Dispatcher) -> int:
    """Of its only engine. The status is renewed now and then, so a young dispatcher's knows of none."""
    until = time.monotonic() + 20
    while not (engines := dispatcher.status()["engines"]) and time.monotonic() < until:
        time.sleep(0.01)
    return int(engines[0]["pid"])


class PeakMemory:
    """The most that an engine held while this was open, looked at every millisecond or so."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.start = self.peak = self._process.memory_info().rss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            self.peak = max(self.peak, self._process.memory_info().rss)


def test_models_that_alternate_never_lie_in_memory_together(start: Start, outbox: RecordingOutbox) -> None:
    """S069: fifty times, in room for one."""
    size = 64 * MIB
    first, second = (fake_model(name, bytes=size, holds=True) for name in ("org/a", "org/b"))
    dispatcher = start(first, second, memory_bytes=size * 3 // 2, quantum_s=0.0)
    assert ask(dispatcher, outbox, delivery(first, "warm")) == [None]
    assert ask(dispatcher, outbox, delivery(second, "warm")) == [None]
    engine = pid_of(dispatcher)
    with PeakMemory(engine) as memory:
        for model in itertools.islice(itertools.cycle((first, second)), 50):
            assert ask(dispatcher, outbox, delivery(model, "hello")) == [None]
    assert memory.peak < memory.start + size // 10
    assert pid_of(dispatcher) == engine


def test_options_that_differ_load_a_model_once(start: Start, outbox: RecordingOutbox) -> None:
    """S071: twenty calls, four at a time."""
    model = fake_model("org/a", load_s=0.2)
    dispatcher = start(model)

    def call(number: int) -> Any:
        options = {"normalize": bool(number % 2), "output_dims": 4 * (number % 3) or None, "overflow": "truncate"}
        one = delivery(model, "hello")
        one.load = lambda: Payload([{"text": f"text {number}"}], options)
        return ask(dispatcher, outbox, one)

    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(call, range(20))) == [[None]] * 20
    assert dispatcher.counters["loads"] == 1


def test_one_long_text_among_short_ones_takes_no_more_than_the_budget(start: Start, outbox: RecordingOutbox) -> None:
    """S074: 31 texts of 8 words and one of 8192 are 8440 words, and would be 262,144 padded together."""
    budget = 16_384
    model = fake_model("org/a", packed=False, memory_cost=budget, budget=budget, load_s=0.2)
    dispatcher = start(model)
    texts = ["word " * 8] * 31 + ["word " * 8192]
    assert ask(dispatcher, outbox, *(delivery(model, text) for text in texts)) == [None] * 32
    assert dispatcher.counters["retries"] == 0
    assert dispatcher.counters["cost"] == 31 * 8 + 8192
