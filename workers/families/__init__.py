"""Families: the code for one kind of model each. A new family is one file here, one line in FAMILIES, one entry.

A family has two halves. The *preparer* lives in the worker process: it turns items into forward inputs and outputs
into results, must not import torch, and is called from several threads. The *loaded model* lives in the engine
process: it holds weights and runs forwards, one at a time. Import heavy libraries inside `load`, not at the top.
"""

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from protocol.errors import InvalidInput, ModelLoadFailed, ShoalError
from protocol.messages import Payload
from protocol.spec import ModelSpec

FAMILIES = {
    "causal_reranker": "workers.families.causal_reranker",
    "cross_encoder": "workers.families.cross_encoder",
    "detector": "workers.families.detector",
    "docling": "workers.families.docling",
    "donut": "workers.families.donut",
    "fake": "workers.families.fake",
    "florence": "workers.families.florence",
    "gliclass": "workers.families.gliclass",
    "gliner": "workers.families.gliner",
    "gliner2": "workers.families.gliner2",
    "image_encoder": "workers.families.image_encoder",
    "m3": "workers.families.m3",
    "multi_vector": "workers.families.multi_vector",
    "ocr": "workers.families.ocr",
    "owl": "workers.families.owl",
    "page_encoder": "workers.families.page_encoder",
    "page_reader": "workers.families.page_reader",
    "parakeet": "workers.families.parakeet",
    "segmenter": "workers.families.segmenter",
    "sparse_encoder": "workers.families.sparse_encoder",
    "token_classifier": "workers.families.token_classifier",
    "text_classifier": "workers.families.text_classifier",
    "text_encoder": "workers.families.text_encoder",
    "whisper": "workers.families.whisper",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """One part of an item, ready for a forward: most items have one part, a long text one for each of its windows.

    `inputs` crosses the engine pipe (plain values and NumPy arrays). `cost` is in padded-token equivalents: for a
    padded family the length that decides the padded size, for every family the share of the batch budget it takes.
    Entries whose `key` differs never share a forward: put there only what changes the forward. `about` stays in the
    worker, for `finish`.
    """

    inputs: Mapping[str, Any]
    cost: int
    tokens: int = 0  # what usage counts; the parts' sum is the item's
    key: Hashable = None
    truncated: bool = False
    units: Mapping[str, int] = field(default_factory=dict)  # what usage counts beside tokens, of `native.UNITS`
    about: Any = None


Parts = list[Prepared]


class Preparer(Protocol):
    """The worker's half of a loaded model; thread-safe."""

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        """One outcome per item, in order; an item that cannot be read is an error, not an exception.

        The payload has a `query` exactly when the items are to be scored. Raises ShoalError when the options make
        the whole call impossible.
        """
        ...

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        """Shape one item's raw outputs, one per part, into its result map: join, truncate, normalise. NumPy only.

        To encode: `dense`, `sparse`, `multivector`. To score: `score`, a float. To extract: any of `entities`,
        `relations`, `classifications`, `objects`, `data`, and `truncated` where the answer itself was cut short. What
        was read is counted by the worker from the parts.
        Raises ShoalError (NonFiniteOutput) when the outputs must not be given to a caller.
        """
        ...


class LoadedModel(Protocol):
    """The engine's half."""

    packed: bool  # True: forwards cost the plain sum of entries; False: longest times count
    bytes: int  # device memory its weights and buffers hold, measured

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """Raw outputs, one per input, in order. May raise anything; MemoryError kinds are recognised by the engine."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What is worth showing of this model as loaded: dims, dtype, pooling, packed and why not."""
        ...


class HostCopy(Protocol):
    """The weights of a loaded model in the host's memory: `layers.parking` makes it for torch.

    No forward runs from `park` to the end of `wake`. None of these is called on the thread that runs forwards.
    """

    def park(self) -> int:
        """Free the model's device memory; the bytes of the copy. Costs nothing where the copy is still there.

        May raise when the host has no memory for it; the model is unloaded then.
        """
        ...

    def wake(self) -> None:
        """Back to the device; the copy stays. May raise as a load does; the model is unloaded then."""
        ...

    def drop(self) -> None:
        """Free the copy of a model that is on the device."""
        ...


@runtime_checkable
class Parkable(Protocol):
    """A loaded model that can wait in the host's memory when others need the device; None: not on this device."""

    host_copy: HostCopy | None


class Family(Protocol):
    """What a family module offers, as module-level functions; one that extracts also says which options it reads:
    `OPTIONS`, names of `protocol.options.ExtractOptions`. It refuses the others with `refuse_unread`.
    """

    def warm(self) -> None:
        """Import what `load` will need, so that the first load need not wait for it."""
        ...

    def preparer(self, spec: ModelSpec, folder: Path | None) -> Preparer: ...

    def load(self, spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> LoadedModel:
        """`device` is a torch device string; call `report` with the share done, 0 to 1."""
        ...

    def estimate_bytes(self, spec: ModelSpec, folder: Path | None, device: str) -> int:
        """Device memory of the weights, before loading, from file headers alone."""
        ...


def refuse_unread(options: Mapping[str, Any], read: frozenset[str], model: str) -> None:
    """Refuse an option that was given but that this model's family would ignore. Raises InvalidInput."""
    for name, value in options.items():
        if value is not None and name not in read:
            reads = ", ".join(sorted(read)) or "no options"
            raise InvalidInput(f"model {model!r} does not read {name!r}; it reads {reads}", param=f"options.{name}")


def family(name: str) -> Family:
    """The module of a family. Raises ModelLoadFailed for an unknown name: gateways do not know which there are."""
    if name not in FAMILIES:
        raise ModelLoadFailed(f"this worker has no family {name!r}; it has: {', '.join(sorted(FAMILIES))}")
    module: Family = importlib.import_module(FAMILIES[name])
    return module
