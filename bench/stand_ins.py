"""Checkpoints of five kinds that need no download: MiniLM's own encoder, and heads with random weights on it.

They have the size and speed of small models of their kind and the right shape of every answer; what they answer means
nothing until somebody trains the heads. The encoder itself is real.

    python -m bench.stand_ins FOLDER      writes those of published models to FOLDER/<org>/<name>, for SHOAL_MODELS
"""

import argparse
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.system import MODEL
from catalog import loader
from workers import weights

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of model: how its checkpoint is made, what its entry says, what is asked of it."""

    name: str
    make: Callable[[Path, Path], None]
    entry: Mapping[str, Any]
    asked: Mapping[str, Any]  # body of a call
    published: str | None = None  # a model of this kind, which it may stand in for

    @property
    def model(self) -> str:
        return f"stand-in/{self.name}"

    @property
    def path(self) -> str:
        return f"/v1/{self.entry['primitives'][0]}/{self.model}"


def make(folder: Path, catalog: Path, data: Path) -> list[Kind]:
    """Write every checkpoint into `folder` and its entry into `catalog`."""
    body = minilm(data)
    for kind in KINDS:
        place = _write(kind, body, folder / kind.name)
        entry = {"id": kind.model, "source": {"folder": str(place)}, **kind.entry}
        (catalog / f"{kind.name}.yaml").write_text(json.dumps(entry))
    return KINDS


def write_published(folder: Path, data: Path) -> list[str]:
    """Checkpoints under the names of the models they stand in for, whose ids are answered."""
    body = minilm(data)
    published = {kind.published: kind for kind in KINDS if kind.published is not None}
    for model, kind in published.items():
        _write(kind, body, folder / model)
    return list(published)


def _write(kind: Kind, body: Path, place: Path) -> Path:
    """A folder that is there already was written whole."""
    if not place.is_dir():
        draft = place.with_name(f"{place.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        kind.make(body, draft)
        draft.rename(place)
    return place


def minilm(data: Path) -> Path:
    """The folder of the real encoder."""
    spec = next(entry.model.spec for entry in loader.load([loader.ENTRIES]) if entry.model.spec.model == MODEL)
    return weights.resolve(spec, SimpleNamespace(models_folder=None, offline=True, data=data))


def _encoder(body: Path, folder: Path) -> None:
    shutil.copytree(body, folder, dirs_exist_ok=True)


def _headed(auto: str, **config: Any) -> Callable[[Path, Path], None]:
    """MiniLM under a head of transformers' own."""

    def write(body: Path, folder: Path) -> None:
        import torch
        import transformers

        library: Any = transformers
        torch.manual_seed(0)
        library.logging.set_verbosity_error()
        getattr(library, auto).from_pretrained(body, **config).save_pretrained(folder)
        library.AutoTokenizer.from_pretrained(body).save_pretrained(folder)

    return write


def _gliner(body: Path, folder: Path) -> None:
    import torch
    from gliner import GLiNER, GLiNERConfig

    torch.manual_seed(0)
    config = GLiNERConfig(
        model_name=str(body), max_width=8, hidden_size=64, dropout=0.0, max_len=256, max_types=25, num_rnn_layers=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about ways of its that it will change
        GLiNER.from_config(config).save_pretrained(folder, safe_serialization=True)


_TEXTS = [
    {"text": "Ada Lovelace wrote to Charles Babbage in London."},
    {"text": "An invoice of 1,200 EUR is due in May."},
]

KINDS = [
    Kind(
        "encoder",
        _encoder,
        {"family": "text_encoder", "primitives": ["encode"], "outputs": ["dense"], "dims": {"dense": 384}},
        {"items": _TEXTS},
    ),
    Kind(
        "reranker",
        _headed("AutoModelForSequenceClassification", num_labels=1),
        {"family": "cross_encoder", "primitives": ["score"]},
        {"query": {"text": "What is due?"}, "items": _TEXTS},
        "cross-encoder/ms-marco-MiniLM-L-6-v2",
    ),
    Kind(
        "sparse",
        _headed("AutoModelForMaskedLM"),
        {"family": "sparse_encoder", "primitives": ["encode"], "outputs": ["sparse"]},
        {"items": _TEXTS, "params": {"output_types": ["sparse"]}},
    ),
    Kind(
        "entities",
        _gliner,
        {"family": "gliner", "primitives": ["extract"]},
        {"items": _TEXTS, "params": {"labels": ["person", "city"], "options": {"threshold": 0.3}}},
        "urchade/gliner_multi-v2.1",
    ),
    Kind(
        "tagger",
        _headed("AutoModelForTokenClassification", num_labels=7, id2label=dict(enumerate(LABELS))),
        {"family": "token_classifier", "primitives": ["extract"]},
        {"items": _TEXTS},
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=loader.ENTRIES.parents[1] / ".shoal")
    given = parser.parse_args()
    for model in write_published(given.folder, given.data):
        print(f"{model}: a stand-in, its answers mean nothing")


if __name__ == "__main__":
    main()
