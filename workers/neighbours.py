"""What the workers of a pool tell each other: who has which model, and what it costs.

One hash per pool with a field per model, written by whoever has it; the last to write stands for all. So a worker reads
as much as there are models, however many workers there are, and what a model costs stays known when nobody has it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import redis

from protocol import clock, names
from workers.claims import UNKNOWN_LOAD_S
from workers.links import connect

log = logging.getLogger("shoal.neighbours")

TELL_S = 1.0
FRESH_S = 3.0  # what was said longer ago holds no more
KEPT_S = 86400.0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model, as far as it was ever loaded in the pool."""

    size: int = 0  # bytes on a device
    load_s: float = UNKNOWN_LOAD_S
    rate: float | None = None  # cost a second in full batches
    cost: float | None = None  # of a message, on average
    held_elsewhere: bool = False  # another worker has it, or is loading it

    def work_s(self, messages: int) -> float:
        """Device time of so many messages; 0 while that cannot be known."""
        return messages * self.cost / self.rate if self.cost and self.rate else 0.0


@dataclass(frozen=True, slots=True)
class News:
    """The last that was heard; `heard` is monotonic."""

    heard: float = -math.inf
    others: frozenset[str] = frozenset()  # names of the pool's other workers
    models: Mapping[str, Known] = field(default_factory=dict)

    def model(self, name: str) -> Known:
        return self.models.get(name, Known())


class Neighbours:
    """`tell` gives the models that this worker has. A thread tells and listens once a second, or when nudged."""

    def __init__(self, redis_url: str, pool: str, name: str, tell: Callable[[], Mapping[str, Known]]) -> None:
        self._redis = connect(redis_url, timeout_s=2)
        self._holders, self._members = names.holders(pool), names.members(pool)
        self._name = name
        self._tell = tell
        self._told: dict[str, Known] = {}
        self._news = News()
        self._is_away = self._is_leaving = False
        self._nudged = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neighbours", daemon=True)

    def start(self) -> None:
        """What others have is known from the beginning."""
        self._try(self.exchange)
        self._thread.start()

    def leave(self) -> None:
        """Nobody need leave anything to this worker any more."""
        self._is_leaving = True
        self._nudged.set()

    def stop(self) -> None:
        self.leave()
        self._thread.join(timeout=5)

    def news(self) -> News:
        """Callable from any thread."""
        return self._news

    def nudge(self) -> None:
        """Tell and listen now. Never blocks."""
        self._nudged.set()

    def _run(self) -> None:
        while not self._is_leaving:
            self._try(self.exchange)
            self._nudged.wait(TELL_S)
            self._nudged.clear()
        self._try(self._say_goodbye)

    def _try(self, speak: Callable[[], None]) -> None:
        try:
            speak()
            self._is_away = False
        except redis.RedisError as error:
            if not self._is_away:
                log.warning("neighbours not heard: redis is away", extra={"error": type(error).__name__})
            self._is_away = True
        except Exception:  # the loop's edge: without this thread claims would go by old news for ever
            log.exception("neighbours failed")

    def exchange(self) -> None:
        now = clock.now()
        self._told = {model: _completed(known, self._news.model(model)) for model, known in self._tell().items()}
        with self._redis.pipeline(transaction=False) as pipe:
            if self._told:
                pipe.hset(self._holders, mapping=self._written(self._told, now))
            pipe.zadd(self._members, {self._name: now})
            pipe.zremrangebyscore(self._members, "-inf", now - KEPT_S)
            for key in (self._members, self._holders):
                pipe.expire(key, int(KEPT_S))
            pipe.zrangebyscore(self._members, now - FRESH_S, "+inf")
            pipe.hgetall(self._holders)
            *_, members, held = pipe.execute()
        others = frozenset(member.decode(errors="replace") for member in members) - {self._name}
        self._news = News(time.monotonic(), others, self._read(held, now))

    def _say_goodbye(self) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrem(self._members, self._name)
            if self._told:
                pipe.hset(self._holders, mapping=self._written(self._told, 0.0))
            pipe.execute()

    def _written(self, models: Mapping[str, Known], now: float) -> dict[Any, Any]:
        return {
            model: orjson.dumps([now, self._name, known.size, known.load_s, known.rate, known.cost])
            for model, known in models.items()
        }

    def _read(self, held: Mapping[bytes, bytes], now: float) -> dict[str, Known]:
        found = {model.decode(errors="replace"): self._read_one(raw, now) for model, raw in held.items()}
        return {model: known for model, known in found.items() if known is not None}

    def _read_one(self, raw: bytes, now: float) -> Known | None:
        """None for what no worker of this version wrote."""
        try:
            at, name, size, load_s, rate, cost = orjson.loads(raw)
            is_held = now - float(at) < FRESH_S and name != self._name
            return Known(int(size), float(load_s), _positive(rate), _positive(cost), is_held)
        except (ValueError, TypeError):
            return None


def _completed(known: Known, before: Known) -> Known:
    """What this worker has not measured yet, others may have."""
    return replace(
        known,
        size=known.size or before.size,
        load_s=known.load_s or before.load_s,
        rate=known.rate or before.rate,
        cost=known.cost or before.cost,
    )


def _positive(value: Any) -> float | None:
    return float(value) if value is not None and float(value) > 0 else None
