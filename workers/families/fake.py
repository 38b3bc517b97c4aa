"""A family without weights or torch: it sleeps as long as it is told and answers what can be checked.

Ships because tests and benches need models whose load time, forward time, memory and faults are known.
Load options (`load:` of the entry), all optional:

    load_s          seconds a load takes
    wake_s          seconds that waking from the host's memory takes, and parking there for the first time
    load_error      message of the error every load raises
    unsupported     message of the typed error every load raises, which callers see
    oom_loads       how many loads in one engine run out of memory before the first that does not
    bytes           device memory the model claims
    holds           true: it really takes as many bytes of the host's memory
    estimate        what is taken for that before it is loaded, if it is not the same
    forward_s       seconds per forward
    s_per_cost      seconds per cost of a forward, on top
    dims            width of the vectors (entry's `dims.dense`)
    packed          cost model: plain sum (default) or longest times count
    memory_cost     largest batch cost that "fits"; beyond it the forward raises MemoryError
    immune          true: words trigger no faults, as in a model that was mended

Words in a text trigger faults: `boom` raises, `zzznan` gives a NaN vector, `segfault` kills the engine process,
`hang` sleeps for an hour, `oom` and `torchoom` run out of memory as Python and as torch say it, `deviceassert` fails as
CUDA does: with this forward every later one of the process. Outside of forwards, when texts are encoded: `unreadable`
raises in preparing, `unfinished` in finishing, `unwritable` gives a result that has no form on the wire.

Answers are functions of the item alone. To encode: a unit vector, its seed the text's SHA-256. To score: the share of
words that query and text have in common. To extract: every word of the text that is one of the labels, as an entity
(a text longer than `max_tokens` words is read in windows), and how many bytes its media have.
"""

import hashlib
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread

_loads: Counter[str] = Counter()  # that ran out of memory, by model
_lost_devices: list[int] = []  # not empty: the device answers this process no more

DEFAULT_BYTES = 1 << 20
DEFAULT_DIMS = 8
OPTIONS = frozenset({"labels", "overflow"})
_WORD = re.compile(r"\S+")


def vector(text: str, dims: int) -> np.ndarray:
    """The unit vector the fake answers for `text`; tests compute it on their own side to see swapped replies."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    raw = np.random.default_rng(seed).standard_normal(dims).astype(np.float32)
    return raw / np.linalg.norm(raw)


def overlap(query: str, text: str) -> float:
    """The score of a text: the words in common, of all words of both."""
    asked, found = set(query.split()), set(text.split())
    return len(asked & found) / max(len(asked | found), 1)


class FakePreparer:
    """One token per whitespace word, at least one."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        if payload.query is not None:
            return [self._pair(payload.query, item) for item in payload.items]
        if "extract" in self._spec.primitives:
            wanted = ExtractOptions.from_wire(payload.options)
            refuse_unread(payload.options, OPTIONS, self._spec.model)
            return [self._windows(item, wanted) for item in payload.items]
        return [self._text(item) for item in payload.items]

    def _text(self, item: Mapping[str, Any]) -> Parts | ShoalError:
        text = item.get("text")
        if not isinstance(text, str):
            return InvalidInput("the fake family reads text only", param="text")
        if self._has(text, "unreadable"):
            raise RuntimeError("unreadable")
        tokens = max(len(text.split()), 1)
        limit = self._spec.max_tokens or tokens
        return [Prepared({"text": text}, min(tokens, limit), min(tokens, limit), truncated=tokens > limit)]

    def _pair(self, query: Mapping[str, Any], item: Mapping[str, Any]) -> Parts | ShoalError:
        if "text" not in query or "text" not in item:
            return InvalidInput("the fake family scores texts only", param="text")
        tokens = len(query["text"].split()) + max(len(item["text"].split()), 1)
        return [Prepared({"text": item["text"], "query": query["text"]}, tokens, tokens)]

    def _windows(self, item: Mapping[str, Any], wanted: ExtractOptions) -> Parts | ShoalError:
        """Windows do not overlap: the fake's entities are single words. Media are a part of their own."""
        media = {kind: item[kind] for kind in ("images", "audio", "video", "document") if kind in item}
        if not media and "text" not in item:
            return InvalidInput("the fake family reads text and media", param="text")
        spans = list(_WORD.finditer(item.get("text", "")))
        size = self._spec.max_tokens or max(len(spans), 1)
        if wanted.overflow == "error" and len(spans) > size:
            return InputTooLong(f"the text has {len(spans)} words; model {self._spec.model!r} reads {size} at once")
        starts = range(0, len(spans) if wanted.overflow != "truncate" else min(len(spans), size), size)
        cut = wanted.overflow == "truncate" and len(spans) > size
        parts = [self._window(item["text"], spans[start : start + size], wanted, cut) for start in starts]
        if media:
            units = {"images": len(media.get("images", ()))}
            parts.append(Prepared({"text": "", "media": media}, cost=1, units=units))
        return parts

    def _window(self, text: str, spans: Sequence[re.Match[str]], wanted: ExtractOptions, cut: bool) -> Prepared:
        start = spans[0].start()
        inputs = {"text": text[start : spans[-1].end()], "labels": wanted.labels or ()}
        return Prepared(inputs, len(spans), len(spans), truncated=cut, about=start)

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        if "extract" in self._spec.primitives:
            return _joined(outputs, parts)
        [output] = outputs
        if "score" in output:
            return {"score": output["score"]}
        values, text = output["dense"], parts[0].inputs["text"]
        if self._has(text, "unfinished"):
            raise RuntimeError("unfinished")
        if self._has(text, "unwritable"):
            return {"dense": object()}
        if not np.isfinite(values).all():
            raise NonFiniteOutput(f"model {self._spec.model!r} gave a vector that is not finite")
        return {"dense": {"dims": len(values), "dtype": "float32", "values": values}}

    def _has(self, text: str, fault: str) -> bool:
        return fault in text.split() and not self._spec.load.get("immune")


def _joined(outputs: Sequence[Mapping[str, Any]], parts: Parts) -> dict[str, Any]:
    """Entities with offsets into the whole text, and what was found in media."""
    result: dict[str, Any] = {"entities": []}
    for output, part in zip(outputs, parts, strict=True):
        if "bytes" in output:
            result["data"] = {"bytes": output["bytes"]}
        for label, start, end in output.get("found", ()):
            span = {"start": part.about + start, "end": part.about + end}
            result["entities"].append({"text": label, "label": label, "score": 1.0, **span})
    return result


class FakeCopy:
    """Takes as long to make as to read, and is not made twice."""

    def __init__(self, size: int, seconds: float) -> None:
        self._size = size
        self._seconds = seconds
        self._is_there = False

    def park(self) -> int:
        time.sleep(0.0 if self._is_there else self._seconds)
        self._is_there = True
        return self._size

    def wake(self) -> None:
        time.sleep(self._seconds)

    def drop(self) -> None:
        self._is_there = False


class FakeModel:
    """Sleeps, then answers from the text."""

    def __init__(self, spec: ModelSpec) -> None:
        self._load = spec.load
        self._dims = spec.dims.get("dense", DEFAULT_DIMS)
        self.packed: bool = spec.load.get("packed", True)
        self.bytes: int = spec.load.get("bytes", DEFAULT_BYTES)
        self.host_copy = FakeCopy(self.bytes, spec.load.get("wake_s", 0.0))
        self._weights = np.ones(self.bytes if spec.load.get("holds") else 0, np.uint8)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        texts = [inputs["text"] for inputs in batch]
        if not self._load.get("immune"):
            self._fault(texts)
        lengths = [max(len(text.split()), 1) for text in texts]
        cost = sum(lengths) if self.packed else max(lengths) * len(lengths)
        if cost > self._load.get("memory_cost", cost):
            raise MemoryError(f"cost {cost} does not fit")
        time.sleep(self._load.get("forward_s", 0.0) + cost * self._load.get("s_per_cost", 0.0))
        return [self._answer(inputs) for inputs in batch]

    def facts(self) -> Mapping[str, Any]:
        return {"dims": self._dims, "dtype": "float32"}

    def _answer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if "query" in inputs:
            return {"score": overlap(inputs["query"], inputs["text"])}
        if "media" in inputs:
            return {"bytes": {kind: _size(media) for kind, media in inputs["media"].items()}}
        if "labels" in inputs:
            words = [match for match in _WORD.finditer(inputs["text"]) if match[0] in inputs["labels"]]
            return {"found": [(match[0], match.start(), match.end()) for match in words]}
        return {"dense": self._vector(inputs["text"])}

    def _vector(self, text: str) -> np.ndarray:
        if "zzznan" in text.split():
            return np.full(self._dims, np.nan, np.float32)
        return vector(text, self._dims)

    @staticmethod
    def _fault(texts: Sequence[str]) -> None:
        words = {word for text in texts for word in text.split()}
        if "segfault" in words:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "boom" in words:
            raise RuntimeError("boom")
        if "oom" in words:
            raise MemoryError("oom")
        if "torchoom" in words:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 TB")
        if "deviceassert" in words or _lost_devices:
            _lost_devices.append(os.getpid())
            raise RuntimeError("CUDA error: device-side assert triggered")
        if "hang" in words:
            time.sleep(3600)


def _size(media: Any) -> int:
    return sum(len(one["data"]) for one in (media if isinstance(media, list | tuple) else [media]))


def warm() -> None:
    """Nothing to import."""


def preparer(spec: ModelSpec, folder: Path | None) -> FakePreparer:
    return FakePreparer(spec)


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return int(spec.load.get("estimate", spec.load.get("bytes", DEFAULT_BYTES)))


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> FakeModel:
    steps = 10
    for step in range(steps):
        time.sleep(spec.load.get("load_s", 0.0) / steps)
        report((step + 1) / steps)
    if _loads[spec.model] < spec.load.get("oom_loads", 0):
        _loads[spec.model] += 1
        raise MemoryError("no memory for the weights")
    if "unsupported" in spec.load:
        raise ModelLoadFailed(spec.load["unsupported"], extra={"error_class": "UNSUPPORTED", "permanent": True})
    if "load_error" in spec.load:
        raise RuntimeError(spec.load["load_error"])
    return FakeModel(spec)
