"""The real dispatcher on a scripted device: on a clock of its own, and engines answer when the test says so."""

import itertools
import selectors
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from catalog.snapshot import Model, Snapshot
from protocol.errors import ShoalError
from protocol.messages import Payload, Request
from protocol.spec import ModelSpec
from tests.unit.workers_doubles import RecordingOutbox
from workers.config import WorkerConfig
from workers.deliveries import Delivery
from workers.dispatcher import Dispatcher, Outside
from workers.families import Parts, Prepared, Preparer
from workers.prepare import Files, Items

FAR_S = 1e6  # no deadline passes by itself


def scripted_model(
    name: str, size: int, bundle: str = "base", *, pinned: bool = False, budget: int | None = None
) -> Model:
    spec = ModelSpec(
        model=name,
        family="fake",
        primitives=("encode",),
        outputs=("dense",),
        dims={"dense": 8},
        load={"bytes": size},
        bundle=bundle,
        budget=budget,
    )
    return Model(spec, pinned=pinned)


@dataclass(eq=False)
class ScriptedEngine:
    """Keeps what it is sent until it is told to answer, and complains of what no dispatcher may ask for."""

    bundle: str
    device: "Device"
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    forwards: list[dict[str, Any]] = field(default_factory=list)
    parks: list[str] = field(default_factory=list)
    wakes: list[str] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)
    copies: set[str] = field(default_factory=set)  # in the host's memory
    _words: list[dict[str, Any]] = field(default_factory=list)
    _is_dead: bool = False
    pid: int = 0

    def send(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "load":
                assert message["digest"] not in self.loaded | self.copies, "it is here already"
                self.device.promise(message["digest"])
                self.loads.append(message["digest"])
            case "unload" | "park":
                assert message["digest"] in self.loaded, "there is nothing to unload"
                assert all(one["digest"] != message["digest"] for one in self.forwards), "a forward holds a lease on it"
                assert message["digest"] not in self.device.pinned, "it is pinned"
                self.loaded.discard(message["digest"])
                (self.unloads if message["op"] == "unload" else self.parks).append(message["digest"])
                if message["op"] == "park":
                    self.device.promise_host(message["digest"])
            case "wake":
                assert message["digest"] in self.copies - self.loaded, "there is nothing to wake"
                self.device.promise(message["digest"])
                self.wakes.append(message["digest"])
            case "drop":
                assert message["digest"] in self.copies, "there is no copy"
                assert message["digest"] not in [*self.parks, *self.wakes], "it is on its way"
                self.copies.discard(message["digest"])
                del self.device.host[message["digest"]]
            case "forward":
                assert message["digest"] in self.loaded, "it is not here"
                self.forwards.append(message)

    def flush(self) -> None:
        """Nothing is ever stuck on the way."""

    def receive(self) -> Iterator[dict[str, Any]]:
        while self._words:
            yield self._words.pop(0)
        if self._is_dead:
            raise EOFError

    def kill(self) -> str:
        self.device.lose(self)
        return "ended"

    def close(self, grace_s: float) -> None:
        self.device.lose(self)

    # -- what the test has it say ------------------------------------------------------------------------------

    def say(self, **message: Any) -> None:
        self._words.append(message)
        self.device.hear(self)

    def die(self) -> None:
        self._is_dead = True
        self.device.hear(self)

    def finish_load(self, size: int) -> None:
        digest = self.loads.pop(0)
        self.loaded.add(digest)
        self.device.held[digest] = size
        self.say(op="loaded", digest=digest, bytes=size, packed=True, facts={}, seconds=0.01 * size, can_park=True)

    def fail_load(self, kind: str) -> None:
        digest = self.loads.pop(0)
        del self.device.held[digest]
        self.say(op="load_failed", digest=digest, kind=kind, message="", error=None)

    def finish_unload(self) -> None:
        self._forget(self.unloads.pop(0))

    def fail_park(self) -> None:
        """The host had no memory for it."""
        self._forget(self.parks.pop(0))

    def _forget(self, digest: str) -> None:
        del self.device.held[digest]
        self.device.host.pop(digest, None)
        self.copies.discard(digest)
        self.say(op="unloaded", digest=digest, rss=0)

    def finish_park(self) -> None:
        digest = self.parks.pop(0)
        del self.device.held[digest]
        self.copies.add(digest)
        self.say(op="parked", digest=digest, bytes=self.device.host[digest], seconds=0.0)

    def finish_wake(self) -> None:
        digest = self.wakes.pop(0)
        self.loaded.add(digest)
        self.say(op="woken", digest=digest, seconds=0.001 * self.device.held[digest])

    def fail_wake(self, kind: str) -> None:
        digest = self.wakes.pop(0)
        del self.device.held[digest], self.device.host[digest]
        self.copies.discard(digest)
        self.say(op="load_failed", digest=digest, kind=kind, message="", error=None)

    def finish_forward(self, seconds: float = 0.05) -> None:
        message = self.forwards.pop(0)
        self.say(op="done", batch=message["batch"], outputs=[{}] * len(message["inputs"]), seconds=seconds)

    def fail_forward(self, kind: str) -> None:
        message = self.forwards.pop(0)
        self.say(op="failed", batch=message["batch"], kind=kind, error="RuntimeError")

    def finish_all(self) -> None:
        while self.loads:
            self.finish_load(self.device.held[self.loads[0]])
        while self.unloads:
            self.finish_unload()
        while self.parks:
            self.finish_park()
        while self.wakes:
            self.finish_wake()
        while self.forwards:
            self.finish_forward()


class Device:
    """`held` and `host` are the truth that the ledgers must agree with: bytes by digest, promised or measured."""

    def __init__(self, models: Sequence[Model], capacity: int, **config: Any) -> None:
        self.now = 0.0
        self.held: dict[str, int] = {}
        self.host: dict[str, int] = {}
        self.engines: list[ScriptedEngine] = []
        self.capacity = capacity
        self.pinned = {model.spec.digest for model in models if model.pinned}
        self.outbox = RecordingOutbox()
        self._ids = itertools.count(1)
        given = WorkerConfig("w", data=None, memory_bytes=capacity, **config)  # type: ignore[arg-type]  # writes nothing
        self.preparation = PromptPreparation()
        self.ceilings: dict[str, int] = {}  # by model, as the worker's file would have them
        outside = Outside(
            lambda: self.now, lambda: self.now, lambda config: self.preparation, self._engine, lambda config: self
        )
        self.catalog = list(models)
        self.dispatcher = Dispatcher(given, lambda: Snapshot(1, tuple(self.catalog)), self.outbox, outside)

    def _engine(self, config: WorkerConfig, bundle: str, selector: selectors.BaseSelector) -> ScriptedEngine:
        assert all(engine.bundle != bundle for engine in self.engines), "two engines of one bundle"
        self.engines.append(ScriptedEngine(bundle, self))
        return self.engines[-1]

    def promise(self, digest: str) -> None:
        self.held[digest] = self.dispatcher.models[digest].need
        assert sum(self.held.values()) <= self.capacity, "a load was started that does not fit"

    def promise_host(self, digest: str) -> None:
        self.host.setdefault(digest, self.dispatcher.models[digest].need)
        assert sum(self.host.values()) <= self.dispatcher.config.host_bytes, "a model was parked that does not fit"

    def lose(self, engine: ScriptedEngine) -> None:
        self.engines.remove(engine)
        for digest in {*engine.loads, *engine.unloads, *engine.loaded, *engine.parks, *engine.wakes}:
            del self.held[digest]
        for digest in {*engine.copies, *engine.parks}:
            del self.host[digest]

    def hear(self, engine: ScriptedEngine) -> None:
        self.dispatcher.flights.serve_engine(engine, selectors.EVENT_READ)
        self._step()

    def _step(self) -> None:
        """What is found and prepared at once is posted, and read in the step after."""
        for _ in range(3):
            self.dispatcher.step()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._step()

    def finish_all(self) -> None:
        """Every engine does what it has been told so far."""
        for engine in list(self.engines):
            engine.finish_all()

    def ask(self, model: Model, cost: int = 1, lane: str = "interactive", key: str | None = None) -> str:
        request = Request(
            id=f"request-{next(self._ids)}",
            primitive="encode",
            model=model.spec.model,
            digest=model.spec.digest,
            cost=cost,
            count=1,
            deadline=self.now + FAR_S,
            published=self.now,
            lane=lane,
            key=key,
        )
        self.dispatcher.submit(Delivery(request, load=lambda: Payload([])))
        self._step()
        return request.id

    # -- Remembering -------------------------------------------------------------------------------------------

    def get(self, spec: ModelSpec) -> int | None:
        return self.ceilings.get(spec.model)

    def put(self, spec: ModelSpec, cost: int) -> None:
        self.ceilings[spec.model] = cost

    def stop(self) -> None:
        """Writes nothing."""

    # -- what came out -----------------------------------------------------------------------------------------

    def answered(self) -> set[str]:
        return {reply.id for reply in self.outbox.replies}


class PromptPreparation:
    """Every request is one item, which costs what its header says; a model's size is in its entry."""

    def __init__(self) -> None:
        self.slow: set[str] = set()  # names of models whose files come when they are told to
        self._coming: list[Callable[[], None]] = []

    def find(
        self, spec: ModelSpec, progress: Callable[[float], None], answer: Callable[[Files | ShoalError], None]
    ) -> None:
        found = Files(None, PlainPreparer(), spec.load["bytes"])
        if spec.model in self.slow:
            self._coming.append(lambda: answer(found))
        else:
            answer(found)

    def arrive(self) -> None:
        while self._coming:
            self._coming.pop()()

    def prepare(self, delivery: Delivery, preparer: Preparer, answer: Callable[[Items | ShoalError], None]) -> None:
        cost = delivery.request.cost
        answer(Items([[Prepared({}, cost, cost)]], {}, 0.0))

    def stop(self) -> None:
        """Has no threads."""


class PlainPreparer:
    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        raise NotImplementedError

    def finish(self, outputs: Any, parts: Parts, options: Any) -> dict[str, Any]:
        return {}
