"""Checkpoints that need no download: MiniLM's own encoder, heads with random weights on it, and small random models.

Those of the five kinds have the size and speed of small models of their kind. All have the right shape of every answer;
what they answer means nothing until somebody trains them. The encoder itself is real.

    python -m bench.stand_ins FOLDER      those of published models, as FOLDER/<org>/<name> for SHOAL_MODELS

Published models whose weights this machine has are left alone; FOLDER/stand-ins.txt names the others, a line each.
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
from protocol.errors import ModelLoadFailed
from protocol.spec import ModelSpec
from workers.weights.resolve import resolve

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]
LIST = "stand-ins.txt"

Maker = Callable[[Path, Path], None]  # MiniLM's folder, the folder to write


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of model: how its checkpoint is made, what its entry says, what is asked of it."""

    name: str
    make: Maker
    entry: Mapping[str, Any]
    asked: Mapping[str, Any]  # body of a call

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
        place = _write(kind.make, body, folder / kind.name)
        entry = {"id": kind.model, "source": {"folder": str(place)}, **kind.entry}
        (catalog / f"{kind.name}.yaml").write_text(json.dumps(entry))
    return KINDS


def write_published(folder: Path, data: Path) -> list[str]:
    """Checkpoints under the names of the models they stand in for, whose ids are answered and listed there."""
    import transformers

    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    body = minilm(data)
    missing = [model for model in PUBLISHED if not _is_here(model, data)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own, about torch's functions that they call
        for model in missing:
            _write(PUBLISHED[model], body, folder / model)
    (folder / LIST).write_text("".join(f"{model}\n" for model in missing))
    return missing


def _write(maker: Maker, body: Path, place: Path) -> Path:
    """A folder that is there already was written whole."""
    if not place.is_dir():
        draft = place.with_name(f"{place.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        maker(body, draft)
        draft.rename(place)
    return place


def minilm(data: Path) -> Path:
    """The folder of the real encoder."""
    return resolve(_spec(MODEL), _offline(data))


def _is_here(model: str, data: Path) -> bool:
    try:
        resolve(_spec(model), _offline(data))
    except ModelLoadFailed:
        return False
    return True


def _spec(model: str) -> ModelSpec:
    return next(entry.model.spec for entry in loader.load([loader.ENTRIES]) if entry.model.spec.model == model)


def _offline(data: Path) -> SimpleNamespace:
    return SimpleNamespace(models_folder=None, offline=True, data=data)


def _encoder(body: Path, folder: Path) -> None:
    shutil.copytree(body, folder, dirs_exist_ok=True)


def _headed(auto: str, **config: Any) -> Maker:
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


def _bge_reranker(body: Path, folder: Path) -> None:
    from bench import checkpoints as tiny

    tokenizer = tiny.wordpiece(body / "tokenizer.json", 8192, pair="[CLS] $A [SEP] [SEP] $B [SEP]")
    tiny.classifier(folder, tiny.config("XLMRoberta", tokenizer), tokenizer)


def _deberta(*labels: str) -> Maker:
    def write(body: Path, folder: Path) -> None:
        from bench import checkpoints as tiny

        tokenizer = tiny.wordpiece(body / "tokenizer.json", 512)
        relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
        tiny.classifier(folder, tiny.config("DebertaV2", tokenizer, **relative), tokenizer, labels)

    return write


def _yes_no_reranker(body: Path, folder: Path) -> None:
    from bench import checkpoints as tiny

    tiny.yes_no_reranker(folder, limit=32768)


def _gliclass(body: Path, folder: Path) -> None:
    from bench import checkpoints as tiny

    tokenizer = tiny.wordpiece(body / "tokenizer.json", 1024)
    tiny.gliclass(folder, tiny.config("Bert", tokenizer), tokenizer, prompt_first=True)


def _gliner2(body: Path, folder: Path) -> None:
    from bench import checkpoints as tiny

    tokenizer = tiny.wordpiece(body / "tokenizer.json", 512)
    encoder = tiny.encoder(folder / "encoder", tiny.config("Bert", tokenizer), tokenizer)
    tiny.gliner2(folder, encoder)
    shutil.rmtree(encoder)  # the model holds its config


def _grounding_dino(body: Path, folder: Path) -> None:
    from bench import checkpoints as tiny

    tiny.grounding_dino(folder, tiny.wordpiece(body / "tokenizer.json", 256))


_RERANKER = _headed("AutoModelForSequenceClassification", num_labels=1)

# Of a published model → what writes its stand-in
PUBLISHED: Mapping[str, Maker] = {
    "cross-encoder/ms-marco-MiniLM-L-6-v2": _RERANKER,
    "BAAI/bge-reranker-v2-m3": _bge_reranker,
    "Qwen/Qwen3-Reranker-0.6B": _yes_no_reranker,
    "BAAI/bge-small-en-v1.5": _encoder,
    "urchade/gliner_multi-v2.1": _gliner,
    "fastino/gliner2-base-v1": _gliner2,
    "fastino/gliner2-large-v1": _gliner2,
    "knowledgator/gliclass-edge-v3.0": _gliclass,
    "cross-encoder/nli-deberta-v3-base": _deberta("contradiction", "entailment", "neutral"),
    "protectai/deberta-v3-base-prompt-injection-v2": _deberta("SAFE", "INJECTION"),
    "IDEA-Research/grounding-dino-tiny": _grounding_dino,
}

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
        _RERANKER,
        {"family": "cross_encoder", "primitives": ["score"]},
        {"query": {"text": "What is due?"}, "items": _TEXTS},
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
