"""What a worker needs to load and run a model: immutable, with a digest that requests carry, not code or paths."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PRIMITIVES = ("encode", "score", "extract", "generate")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's files may come from; tried in the order folder, package, Hugging Face cache, hub."""

    repo: str | None = None  # hub id
    revision: str | None = None
    folder: str | None = None  # an operator's folder, absolute
    package: str | None = None  # key of workers.weights' table of packages that ship weights


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One loadable model. `digest` covers every field that changes what is loaded, so equal digests share weights."""

    model: str  # org/name, without a profile
    family: str
    primitives: tuple[str, ...]
    source: Source = Source()
    bundle: str = "base"
    inputs: tuple[str, ...] = ("text",)
    outputs: tuple[str, ...] = ()  # encode only: dense, sparse, multivector
    dims: Mapping[str, int] = field(default_factory=dict)  # width by output
    matryoshka: tuple[int, ...] = ()  # widths the model was trained to be cut to; empty = cannot shorten
    max_tokens: int | None = None  # longest input the model reads, special tokens included
    load: Mapping[str, Any] = field(default_factory=dict)  # the family's own load options
    budget: int | None = None  # cost per batch; None = the worker's default for the device
    max_items: int = 256  # entries per batch
    pool: str = "default"
    remote_code: bool = False
    digest: str = field(init=False, default="")

    def __post_init__(self) -> None:
        content = asdict(self)
        for not_loaded in ("digest", "budget", "max_items", "pool"):
            content.pop(not_loaded)
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), default=dict)
        object.__setattr__(self, "digest", hashlib.sha256(canonical.encode()).hexdigest()[:16])

    def to_wire(self) -> dict[str, Any]:
        wire = asdict(self)
        wire.pop("digest")
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ModelSpec":
        fields = dict(wire)
        fields["source"] = Source(**fields.get("source", {}))
        for name in ("primitives", "inputs", "outputs", "matryoshka"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)
