"""A request on its way through one worker: from delivery through its items' forwards to one reply."""

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import InferenceError, ShoalError
from protocol.messages import Request
from protocol.replies import Reply
from workers.deliveries import Delivery
from workers.families import Parts, Preparer

log = logging.getLogger("shoal.jobs")


@dataclass(slots=True, eq=False)
class Job:
    """Owned by the dispatcher thread until it is `done`; then only its `reply` runs, on the reply thread."""

    deliveries: list[Delivery]  # more than one when the broker delivered the same request again
    arrival: float
    expires: float  # both by the dispatcher's clock
    waited_s: float = 0.0  # at the broker, before it arrived
    preparer: Preparer | None = None
    options: dict[str, Any] = field(default_factory=dict)
    prepared: list[Parts | ShoalError] = field(default_factory=list)
    outcomes: list[list[Any] | ShoalError] = field(default_factory=list)  # raw outputs by part, or an error, by item
    parts: int = 0  # of all items
    missing: int = 0  # parts without an outcome
    launched: float | None = None
    prepare_s: float = 0.0
    forward_s: float = 0.0
    is_kept: bool = False  # past its deadline, and its caller knows where the result will be
    done: bool = False

    @property
    def request(self) -> Request:
        return self.deliveries[0].request

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def estimated_part_cost(self) -> float:
        """What the gateway took one of its parts for."""
        return self.request.cost / max(self.parts, 1)

    @property
    def may_be_kept(self) -> bool:
        """Whether somebody waits for it and the device has begun with it. A task's deadline is its own."""
        return self.launched is not None and self.request.reply is not None and not (self.request.store or self.is_kept)

    @property
    def items_fail_alone(self) -> bool:
        """Whether one bad item leaves the others their results; elsewhere it fails the whole call."""
        return self.request.primitive == "extract"

    def expect(self, prepared: list[Parts | ShoalError], options: dict[str, Any]) -> None:
        """Await one forward per part; items that could not be prepared have their outcome already."""
        self.prepared, self.options = prepared, options
        self.outcomes = [item if isinstance(item, ShoalError) else [None] * len(item) for item in prepared]
        self.parts = self.missing = sum(len(item) for item in prepared if not isinstance(item, ShoalError))

    def put(self, index: int, part: int, outcome: Any) -> bool:
        """Record one part's outcome, raw output or error; True when it was the last. One bad part fails its item."""
        outputs = self.outcomes[index]
        if isinstance(outcome, ShoalError):
            self.outcomes[index] = outcome
        elif not isinstance(outputs, ShoalError):
            outputs[part] = outcome
        self.missing -= 1
        return self.missing == 0

    def timing(self, now: float) -> dict[str, float]:
        """Milliseconds at the broker and in this worker's stages; who was not launched has queued until `now`."""
        here = (now if self.launched is None else self.launched) - self.arrival - self.prepare_s
        queued = self.waited_s + here
        return {
            "queue": max(queued, 0.0) * 1e3,
            "prepare": self.prepare_s * 1e3,
            "forward": self.forward_s * 1e3,
        }

    def reply(self, worker: str) -> Reply:
        """Post-process every item."""
        started = time.perf_counter()
        results = [self._finish(index) for index in range(len(self.outcomes))]
        timing = self.timing(self.arrival)
        timing["finish"] = (time.perf_counter() - started) * 1e3
        if not self.items_fail_alone:
            for result in results:
                if "error" in result:
                    return Reply(self.id, error=result["error"], timing=timing, worker=worker)
        return Reply(self.id, results=results, timing=timing, worker=worker)

    def _finish(self, index: int) -> dict[str, Any]:
        outcome = self.outcomes[index]
        try:
            if isinstance(outcome, ShoalError):
                raise outcome
            parts = self.prepared[index]
            assert self.preparer is not None and not isinstance(parts, ShoalError)
            return {**counted(parts), **self.preparer.finish(outcome, parts, self.options)}
        except ShoalError as error:
            return {"error": at_item(error, index).to_wire()}
        except Exception:  # post-processing runs library code; its failure is this item's alone
            log.exception("finish failed", extra={"request_id": self.id})
            return {"error": InferenceError("the model's output could not be read", param=f"items[{index}]").to_wire()}


def counted(parts: Parts) -> dict[str, Any]:
    """What was read of an item (see `replies.Reply`)."""
    if len(parts) == 1 and not parts[0].units:
        return {"tokens": parts[0].tokens, "truncated": parts[0].truncated}
    counts: Counter[str] = Counter(tokens=0)
    for part in parts:
        counts.update(part.units, tokens=part.tokens)
    return {**counts, "truncated": any(part.truncated for part in parts)}


def at_item(error: ShoalError, index: int) -> ShoalError:
    """The same error, its `param` naming the item it is about."""
    if error.param is None or not error.param.startswith("items["):
        error.param = f"items[{index}]" + (f".{error.param}" if error.param else "")
    return error
