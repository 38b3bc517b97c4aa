"""The catalog as gateways and workers hold it in memory: immutable, swapped whole when its version changes.

Plain Python on purpose: the dispatcher core reads it without Django, the gateway without touching the database.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import ModelNotFound
from protocol.spec import ModelSpec

DEFAULT_PROFILE = "default"


@dataclass(frozen=True, slots=True)
class Model:
    """One enabled catalog entry. `profiles` maps a name to option defaults; "default" is always there."""

    spec: ModelSpec
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {DEFAULT_PROFILE: {}})
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a caller's model name means: the entry, the profile and that profile's option defaults."""

    name: str
    model: Model
    profile: str
    options: Mapping[str, Any]


class Snapshot:
    """All enabled models, findable by name, alias, `name:profile` and digest."""

    def __init__(self, version: int, models: tuple[Model, ...]) -> None:
        self.version = version
        self.models = {model.spec.model: model for model in models}
        self._aliases = {alias: model for model in models for alias in model.aliases}
        self._by_digest = {model.spec.digest: model for model in models}

    def resolve(self, name: str) -> Resolved:
        """Raises ModelNotFound, with the nearest names as `suggestions`."""
        base, _, profile = name.partition(":")
        model = self.models.get(base) or self._aliases.get(base)
        if model is None:
            raise self._not_found(name)
        profile = profile or DEFAULT_PROFILE
        if profile not in model.profiles:
            there = ", ".join(sorted(model.profiles))
            raise ModelNotFound(
                f"model {model.spec.model!r} has no profile {profile[:80]!r}; it has: {there}", param="model"
            )
        return Resolved(name, model, profile, model.profiles[profile])

    def by_digest(self, digest: str) -> Model | None:
        return self._by_digest.get(digest)

    def names(self) -> list[str]:
        """Every addressable id: models, then `model:profile` variants."""
        return [
            model.spec.model if profile == DEFAULT_PROFILE else f"{model.spec.model}:{profile}"
            for model in self.models.values()
            for profile in model.profiles
        ]

    def _not_found(self, name: str) -> ModelNotFound:
        shown = name if len(name) <= 80 else name[:80] + "…"
        near = difflib.get_close_matches(name[:200], [*self.names(), *self._aliases], n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; GET /v1/models lists what there is"
        return ModelNotFound(f"model {shown!r} is not in the catalog{hint}", param="model", extra={"suggestions": near})

    def to_json(self) -> str:
        return json.dumps({"version": self.version, "models": [_model_to_wire(m) for m in self.models.values()]})

    @classmethod
    def from_json(cls, text: str | bytes) -> "Snapshot":
        wire = json.loads(text)
        return cls(wire["version"], tuple(_model_from_wire(model) for model in wire["models"]))


EMPTY = Snapshot(0, ())


def _model_to_wire(model: Model) -> dict[str, Any]:
    return {
        "spec": model.spec.to_wire(),
        "profiles": {name: dict(options) for name, options in model.profiles.items()},
        "aliases": list(model.aliases),
        "pinned": model.pinned,
        "description": model.description,
    }


def _model_from_wire(wire: Mapping[str, Any]) -> Model:
    return Model(
        spec=ModelSpec.from_wire(wire["spec"]),
        profiles=wire["profiles"],
        aliases=tuple(wire["aliases"]),
        pinned=wire["pinned"],
        description=wire["description"],
    )
