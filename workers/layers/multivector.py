"""Reads what a late-interaction encoder's folder says of itself; no weights, no torch.

Three forms are known: sentence-transformers' own since 6.0 (Transformer, Dense, MultiVectorMask, Normalize), PyLate's
up to 3 (Transformer, Dense; all else in config_sentence_transformers.json) and the ColBERT of Stanford (one folder
of transformers' with the projection among its weights; artifact.metadata). sentence-transformers reads the latter two
the same way, which is what tests compare with. An entry's `load.document_length` says how many tokens of a document
are read where its files say fewer.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protocol.spec import ModelSpec
from workers.layers import checkpoint
from workers.layers.checkpoint import Checkpoint, read_json
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

STANFORD = "HF_ColBERT"
QUERY_TOKENS = 32  # ColBERT's own, where a checkpoint says nothing
STRATEGIES = ("fixed", "min")
_OWN = ("Dense", "MultiVectorMask", "Normalize")
_METADATA = "artifact.metadata"


@dataclass(frozen=True, slots=True)
class Expansion:
    """Queries filled up with a token (Khattab and Zaharia, 2020, https://arxiv.org/abs/2004.12832, section 3.2)."""

    length: int
    is_most: bool  # whether longer queries are cut to it
    is_seen: bool  # whether the query's own tokens look at those that fill it up
    token: str | None  # None: the tokenizer's mask, or else its end


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer behind every token: a folder of sentence-transformers, or the model's own weights."""

    folder: Path
    activation: str = "Identity"  # a class of torch.nn
    has_residual: bool = False


@dataclass(frozen=True, slots=True)
class MultiVectorCheckpoint:
    """What a query and a document are read as."""

    text: Checkpoint
    query: Checkpoint
    document: Checkpoint
    projections: tuple[Projection, ...]
    normalize: bool
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()  # tokens that get no vector
    skips_in: tuple[str, ...] = ("document",)
    kept_only: tuple[int, ...] = ()  # if any, the only tokens of a document that get a vector
    markers: tuple[str, ...] = ()  # prompts whose spelling is one token
    is_mean: bool = False  # whether a score is the mean over the query's tokens, not the sum


def read(spec: ModelSpec, folder: Path) -> MultiVectorCheckpoint:
    """Raises ModelLoadFailed, naming the file, for anything it cannot honour."""
    text = checkpoint.read(spec, folder, own=_OWN, options=("document_length",))
    published = read_json(spec.model, folder / "config_sentence_transformers.json", {})
    if STANFORD in (text.config.get("architectures") or ()):
        return _read_stanford(spec, text)
    modules = dict(text.modules)
    if "MultiVectorMask" in modules:
        return _read_own(spec, text, published)
    if published.get("model_type") == "ColBERT" or "query_prefix" in published:
        return _read_pylate(spec, text, published)
    raise load_failed(spec.model, UNSUPPORTED, "its files describe no late-interaction model of a known form")


def _read_own(spec: ModelSpec, text: Checkpoint, published: Mapping[str, Any]) -> MultiVectorCheckpoint:
    modules = dict(text.modules)
    mask = read_json(spec.model, modules["MultiVectorMask"] / "config.json", {})
    settings = _settings(spec, text)
    tasks = mask.get("skiplist_tasks") or ["document"]
    return _made(
        spec,
        text,
        settings,
        expansion=settings.get("query_expansion"),
        projections=tuple(_projection(spec, inside) for kind, inside in text.modules if kind == "Dense"),
        normalize="Normalize" in modules,
        skipped=tuple(mask.get("skiplist_words") or ()),
        skips_in=(tasks,) if isinstance(tasks, str) else tuple(tasks),
        kept_only=tuple(mask.get("keep_only_token_ids") or ()),
        is_mean=published.get("similarity_fn_name") == "meanmaxsim",
    )


def _read_pylate(spec: ModelSpec, text: Checkpoint, published: Mapping[str, Any]) -> MultiVectorCheckpoint:
    """Lengths, markers and skipped words are in one file; queries are filled up unless it says not to."""
    prompts, markers = dict(text.prompts), []
    for side in ("query", "document"):
        marker = published.get(f"{side}_prefix") or ""
        prompts[side] = marker + prompts.get(side, "").removeprefix(marker)
        markers.append(marker)
    expansion = published.get("query_expansion")
    if "query_expansion" not in published and published.get("do_query_expansion") is not False:
        attend = published.get("attend_to_expansion_tokens", published.get("attend_to_mask_tokens"))
        length = published.get("query_length") or QUERY_TOKENS
        expansion = {"strategy": "fixed", "attend": bool(attend), "length": length}
    words = published.get("skiplist_words")
    return _made(
        spec,
        replace(text, prompts=prompts),
        published,
        expansion=expansion,
        projections=tuple(_projection(spec, inside) for kind, inside in text.modules if kind == "Dense"),
        normalize=True,
        skipped=tuple(string.punctuation if words is None else words),
        markers=tuple(filter(None, markers)),
    )


def _read_stanford(spec: ModelSpec, text: Checkpoint) -> MultiVectorCheckpoint:
    about = read_json(spec.model, text.folder / _METADATA, {})
    markers = (about.get("query_token_id") or "[unused0]", about.get("doc_token_id") or "[unused1]")
    length = about.get("query_maxlen") or QUERY_TOKENS
    return _made(
        spec,
        replace(text, prompts={"query": f"{markers[0]} ", "document": f"{markers[1]} ", **text.prompts}),
        {"document_length": about.get("doc_maxlen")},
        expansion={"strategy": "fixed", "attend": bool(about.get("attend_to_mask_tokens")), "length": length},
        projections=(Projection(text.folder),),
        normalize=True,
        skipped=tuple(string.punctuation) if about.get("mask_punctuation", True) else (),
        markers=markers,
    )


def _made(
    spec: ModelSpec, text: Checkpoint, settings: Mapping[str, Any], *, expansion: Any, **rest: Any
) -> MultiVectorCheckpoint:
    filled = _expansion(spec, expansion, text.max_tokens)
    if not rest["projections"] and rest["normalize"] is False:
        raise load_failed(spec.model, UNSUPPORTED, "its token vectors are neither projected nor made unit length")
    document = spec.load.get("document_length", settings.get("document_length"))
    query = filled.length if filled and filled.is_most else settings.get("query_length")
    return MultiVectorCheckpoint(
        text,
        replace(text, max_tokens=min(filter(None, (query, text.max_tokens)))),
        replace(text, max_tokens=min(filter(None, (document, text.max_tokens)))),
        expansion=filled,
        **rest,
    )


def _expansion(spec: ModelSpec, raw: Any, limit: int) -> Expansion | None:
    if raw is None:
        return None
    if raw.get("strategy") not in STRATEGIES or not isinstance(raw.get("length"), int):
        raise load_failed(spec.model, UNSUPPORTED, f"it fills up queries in an unknown way: {raw}")
    length = min(raw["length"], limit)
    return Expansion(length, raw["strategy"] == "fixed", bool(raw.get("attend")), raw.get("token"))


def _projection(spec: ModelSpec, folder: Path) -> Projection:
    config = read_json(spec.model, folder / "config.json", {})
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    if activation not in checkpoint.ACTIVATIONS:
        wrong = f"its file {folder.name}/config.json asks for the activation {activation!r}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    if not (folder / files.SINGLE).is_file():
        raise load_failed(spec.model, UNSUPPORTED, f"its file {folder.name}/{files.SINGLE} is missing")
    return Projection(folder, activation, bool(config.get("use_residual")))


def _settings(spec: ModelSpec, text: Checkpoint) -> Mapping[str, Any]:
    file = next(iter(sorted(text.folder.glob("sentence_*_config.json"))), None)
    settings: Mapping[str, Any] = read_json(spec.model, file, {}) if file else {}
    return settings
