"""What stands where the dispatcher expects the world: an engine on a simulated card, and items ready at once."""

from collections.abc import Callable, Iterator
from typing import Any

from bench.sim.fleet import Card, size_of
from bench.sim.timeline import Timeline
from protocol.errors import ShoalError
from protocol.messages import Payload
from protocol.spec import ModelSpec
from workers.deliveries import Delivery
from workers.families import Parts, Prepared, Preparer
from workers.prepare import Files, Items


class SimulatedEngine:
    """Forwards and unloads one after the other, loads beside them, as the real engine does."""

    pid = 0

    def __init__(
        self, bundle: str, card: Card, timeline: Timeline, arrived: Callable[["SimulatedEngine"], None]
    ) -> None:
        self.bundle = bundle
        self._card = card
        self._timeline = timeline
        self._arrived = arrived
        self._messages: list[dict[str, Any]] = []
        self._free_at = 0.0
        self._sizes: dict[str, int] = {}
        self._copies: set[str] = set()  # digests of models that the host has too
        self.busy: list[tuple[float, float]] = []  # start and end of every forward
        self.order: list[str] = []  # digests of the forwards
        self.loads: list[str] = []  # and of the loads, in the order they were asked for

    def send(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "forward":
                self._forward(message)
            case "load":
                self._load(message)
            case "unload":
                self._queue(self._card.unload_s, {"op": "unloaded", "digest": message["digest"], "rss": 0})
            case "park" | "wake":
                self._move(message["op"], message["digest"])
            case "drop":
                self._copies.discard(message["digest"])

    def flush(self) -> None:
        """Nothing is ever stuck on the way."""

    def receive(self) -> Iterator[dict[str, Any]]:
        while self._messages:
            yield self._messages.pop(0)

    def kill(self) -> str:
        return "ended"

    def close(self, grace_s: float) -> None:
        """Holds nothing."""

    def _forward(self, message: dict[str, Any]) -> None:
        inputs = message["inputs"]
        seconds = self._card.forward_s(self._sizes[message["digest"]], sum(item["cost"] for item in inputs))
        done = {"op": "done", "batch": message["batch"], "outputs": [None] * len(inputs), "seconds": seconds}
        self.order.append(message["digest"])
        started, ended = self._queue(seconds, done)
        self.busy.append((started, ended))

    def _load(self, message: dict[str, Any]) -> None:
        digest, size = message["digest"], message["spec"]["load"]["bytes"]
        self._sizes[digest] = size
        self.loads.append(digest)
        seconds = self._card.load_s(size)
        loaded = {
            "op": "loaded",
            "digest": digest,
            "bytes": size,
            "packed": True,
            "facts": {},
            "seconds": seconds,
            "can_park": True,
        }
        self._timeline.at(self._timeline.now + seconds, self._deliver, loaded)

    def _move(self, op: str, digest: str) -> None:
        """Between the card and the host, beside forwards; a copy that is there already need not be made."""
        size = self._sizes[digest]
        seconds = 0.0 if op == "park" and digest in self._copies else self._card.wake_s(size)
        self._copies.add(digest)
        said = {"op": "parked", "bytes": size} if op == "park" else {"op": "woken"}
        self._timeline.at(self._timeline.now + seconds, self._deliver, {**said, "digest": digest, "seconds": seconds})

    def _queue(self, seconds: float, message: dict[str, Any]) -> tuple[float, float]:
        started = max(self._timeline.now, self._free_at)
        self._free_at = started + seconds
        self._timeline.at(self._free_at, self._deliver, message)
        return started, self._free_at

    def _deliver(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self._arrived(self)


class InstantPreparation:
    """Every request is one item, which costs what its header says."""

    def find(
        self, spec: ModelSpec, progress: Callable[[float], None], answer: Callable[[Files | ShoalError], None]
    ) -> None:
        answer(Files(None, NoPreparer(), size_of(spec)))

    def prepare(self, delivery: Delivery, preparer: Preparer, answer: Callable[[Items | ShoalError], None]) -> None:
        cost = delivery.request.cost
        answer(Items([[Prepared({"cost": cost}, cost, cost)]], {}, 0.0))

    def stop(self) -> None:
        """Has no threads."""


class NoPreparer:
    """Replies are counted, not made."""

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        raise NotImplementedError

    def finish(self, outputs: Any, parts: Parts, options: Any) -> dict[str, Any]:
        return {}
