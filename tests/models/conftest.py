"""Real checkpoints, found as a worker finds them, and an encoder that does both halves of a family's work."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything reads it: these tests ask no hub

from catalog import loader
from protocol.errors import ShoalError
from protocol.messages import Payload
from protocol.spec import ModelSpec
from workers.families import Prepared, text_encoder
from workers.jobs import counted
from workers.weights.resolve import resolve

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
E5 = "intfloat/multilingual-e5-small"
PARAPHRASE = "sentence-transformers/paraphrase-MiniLM-L3-v2"

Item = str | Mapping[str, Any]


def prepared(preparer: Any, items: Sequence[Item], options: Mapping[str, Any]) -> list[Prepared | ShoalError]:
    """Items of one part each."""
    payload = Payload([{"text": item} if isinstance(item, str) else dict(item) for item in items], dict(options))
    return [outcome if isinstance(outcome, ShoalError) else outcome[0] for outcome in preparer.prepare(payload)]


class Encoder:
    """A preparer and a loaded model."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self.folder = folder
        self.preparer = text_encoder.preparer(spec, folder)
        self.model = text_encoder.load(spec, folder, "cpu", lambda share: None)

    def prepare(self, items: Sequence[Item], **options: Any) -> list[Prepared]:
        """Raises the first error of an item."""
        outcomes = prepared(self.preparer, items, options)
        for outcome in outcomes:
            if isinstance(outcome, ShoalError):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Prepared)]

    def results(self, items: Sequence[Item], **options: Any) -> list[dict[str, Any]]:
        """All items in one forward."""
        parts = self.prepare(items, **options)
        outputs = self.model.forward([part.inputs for part in parts], None)
        return [
            {**self.preparer.finish([output], [part], options), **counted([part])}
            for output, part in zip(outputs, parts, strict=True)
        ]

    def vectors(self, items: Sequence[Item], **options: Any) -> np.ndarray:
        return np.stack([result["dense"]["values"] for result in self.results(items, **options)])


def spec(model: str = "org/tiny", **load: Any) -> ModelSpec:
    return ModelSpec(model, "text_encoder", ("encode",), outputs=("dense",), load=load)


def shipped(model: str) -> ModelSpec:
    """The catalog's own entry."""
    return next(entry.model.spec for entry in loader.load([loader.ENTRIES]) if entry.model.spec.model == model)


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    found: np.ndarray = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    return found


@pytest.fixture(scope="session")
def find(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """The folder of a shipped model; what must be converted is kept with pytest's cache."""
    data = request.config.cache.mkdir("shoal-data")
    config = SimpleNamespace(models_folder=None, offline=True, data=Path(data))
    return lambda model: resolve(shipped(model), config)


@pytest.fixture(scope="session")
def load(find: Callable[[str], Path]) -> Callable[[str], Encoder]:
    """The encoder of a shipped model, loaded once."""
    loaded: dict[str, Encoder] = {}

    def load(model: str) -> Encoder:
        if model not in loaded:
            loaded[model] = Encoder(shipped(model), find(model))
        return loaded[model]

    return load


@pytest.fixture(scope="session")
def minilm(load: Callable[[str], Encoder]) -> Encoder:
    return load(MINILM)


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], Any]:
    """sentence-transformers on a folder, as its authors would load it."""
    from sentence_transformers import SentenceTransformer

    loaded: dict[Path, Any] = {}

    def load(folder: Path) -> Any:
        if folder not in loaded:
            loaded[folder] = SentenceTransformer(str(folder), device="cpu")
        return loaded[folder]

    return load
