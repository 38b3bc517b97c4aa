"""What a worker does off its dispatcher thread: find a model's files, read bodies, turn items into forward inputs."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from protocol import media
from protocol.errors import InferenceError, InputTooLong, InvalidInput, ModelLoadFailed, ShoalError
from protocol.messages import Payload
from protocol.spec import ModelSpec, Source
from workers import bundles
from workers.config import WorkerConfig
from workers.deliveries import Delivery
from workers.families import Parts, Preparer, family
from workers.jobs import at_item
from workers.load_errors import bundle_unusable
from workers.weights.resolve import resolve

log = logging.getLogger("shoal.prepare")


@dataclass(frozen=True, slots=True)
class Files:
    """A model found on this machine: enough to prepare its items and to plan its load."""

    folder: Path | None
    preparer: Preparer
    need: int


# threads that look for files and mostly wait: as many models may wait for the network, and one more finds its own here
FINDERS = 128


MOST_READ_BYTES = 4 << 30  # of one call's images and sound once they are decoded
_AT_ONCE = 16  # items with media that are read before their bytes are counted


@dataclass(frozen=True, slots=True)
class Items:
    """One request's items, ready; `seconds` were spent making them so."""

    prepared: list[Parts | ShoalError]
    options: dict[str, Any]
    seconds: float


class Preparing(Protocol):
    """What the dispatcher hands off; every call answers once, through its callback."""

    def find(
        self, spec: ModelSpec, progress: Callable[[float], None], answer: Callable[[Files | ShoalError], None]
    ) -> None: ...

    def prepare(self, delivery: Delivery, preparer: Preparer, answer: Callable[[Items | ShoalError], None]) -> None: ...

    def stop(self) -> None: ...


class Preparation:
    """Two thread pools; every call answers through a callback with a value or a ShoalError, never raises."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._finders = ThreadPoolExecutor(FINDERS, thread_name_prefix="find")
        self._preparers = ThreadPoolExecutor(max(2, min(config.threads, 4)), thread_name_prefix="prepare")

    def find(
        self, spec: ModelSpec, progress: Callable[[float], None], answer: Callable[[Files | ShoalError], None]
    ) -> None:
        self._finders.submit(lambda: answer(self._find(spec, progress)))

    def prepare(self, delivery: Delivery, preparer: Preparer, answer: Callable[[Items | ShoalError], None]) -> None:
        self._preparers.submit(lambda: answer(_prepare(delivery, preparer)))

    def stop(self) -> None:
        self._finders.shutdown(wait=False, cancel_futures=True)
        self._preparers.shutdown(wait=False, cancel_futures=True)

    def _find(self, spec: ModelSpec, progress: Callable[[float], None]) -> Files | ShoalError:
        try:
            bundles.interpreter(spec.bundle, self._config)  # before anything is fetched, or anybody makes room
            folder = None
            if spec.source != Source():
                folder = resolve(spec, self._config, progress)
            code = family(spec.family)
            return Files(folder, code.preparer(spec, folder), code.estimate_bytes(spec, folder, self._config.device))
        except ShoalError as error:
            return error
        except bundles.Unusable as reason:
            return bundle_unusable(spec, reason)
        except Exception:  # a checkpoint's files may break the libraries that read them in any way
            log.exception("files unusable", extra={"model": spec.model})
            return ModelLoadFailed(f"the files of model {spec.model!r} could not be read; the worker's log says why")


def _prepare(delivery: Delivery, preparer: Preparer) -> Items | ShoalError:
    started = time.perf_counter()
    try:
        payload = delivery.load()
        prepared = _prepare_items(preparer, payload)
        if delivery.request.primitive != "extract":
            _refuse_errors(prepared)
    except ShoalError as error:
        return error
    except Exception:  # preparing runs library code over customers' input
        log.exception("prepare failed", extra={"request_id": delivery.request.id})
        return InferenceError("the items could not be prepared")
    return Items(prepared, payload.options, time.perf_counter() - started)


def _prepare_items(preparer: Preparer, payload: Payload) -> list[Parts | ShoalError]:
    if not payload.items:
        raise InvalidInput("items must not be empty", param="items")
    if payload.query is not None or not any(item.keys() & set(media.KINDS) for item in payload.items):
        return preparer.prepare(payload)
    prepared: list[Parts | ShoalError] = []
    size = 0
    for start in range(0, len(payload.items), _AT_ONCE):
        some = preparer.prepare(Payload(payload.items[start : start + _AT_ONCE], payload.options))
        size += sum(_size(found) for found in some)
        if size > MOST_READ_BYTES:
            wrong = f"images and sound of the items take more than {MOST_READ_BYTES} bytes once they are decoded"
            raise InputTooLong(f"{wrong}; send them in several calls", param="items", extra={"limit": MOST_READ_BYTES})
        prepared += some
    return prepared


def _size(found: Parts | ShoalError) -> int:
    """Bytes of the arrays that an item became."""
    if isinstance(found, ShoalError):
        return 0
    return sum(getattr(value, "nbytes", 0) for part in found for value in part.inputs.values())


def _refuse_errors(prepared: list[Parts | ShoalError]) -> None:
    """Only an extract item may fail alone; elsewhere the first bad item fails the call before it costs a forward."""
    for index, outcome in enumerate(prepared):
        if isinstance(outcome, ShoalError):
            raise at_item(outcome, index)
