"""A GLiNER checkpoint's folder: what its gliner_config.json says, without torch, and the library's model of it."""

import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.spec import ModelSpec
from workers.layers import transformer
from workers.layers.checkpoint import read_json, token_limit
from workers.layers.making import MAKING
from workers.layers.whole import refuse_missing
from workers.weights import files, hub
from workers.weights.failures import UNSUPPORTED, load_failed

CONFIG = "gliner_config.json"
_LOAD_OPTIONS = ("tokenizers", "merge_adjacent", "dtype")
_SPECIAL_TOKENS = 2  # around a text
_LABELS_TOKENIZER = "labels_tokenizer"  # folder


@dataclass(frozen=True, slots=True)
class About:
    """What the preparer needs to know."""

    words: int  # at once
    width: int  # most words of an entity
    limit: int  # tokens at once, without the special ones
    markers: tuple[str, str]  # of a label, and behind the labels
    is_bi_encoder: bool


def read(spec: ModelSpec, folder: Path) -> About:
    """Raises ModelLoadFailed for a kind of checkpoint that the family does not read."""
    config = _config(spec, folder)
    is_token_level = config.get("span_mode") == "token_level"
    return About(
        words=config.get("max_len", 384),
        width=0 if is_token_level else config.get("max_width", 12),
        limit=_limit(spec, folder, config) - _SPECIAL_TOKENS,
        markers=(config.get("ent_token", "<<ENT>>"), config.get("sep_token", "<<SEP>>")),
        is_bi_encoder=bool(config.get("labels_encoder")),
    )


def _config(spec: ModelSpec, folder: Path) -> dict[str, Any]:
    for name in spec.load:
        if name not in _LOAD_OPTIONS:
            known = ", ".join(_LOAD_OPTIONS)
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: {known}")
    config: dict[str, Any] | None = read_json(spec.model, folder / CONFIG)
    if config is None:
        raise load_failed(spec.model, UNSUPPORTED, f"its folder has no {CONFIG}")
    if not (folder / files.SINGLE).is_file():
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    unread = [name for name in ("labels_decoder", "relations_layer", "precomputed_prompts_mode") if config.get(name)]
    if config.get("words_splitter_type", "whitespace") != "whitespace":
        unread.append("words_splitter_type")
    if unread:
        raise load_failed(spec.model, UNSUPPORTED, f"its {CONFIG} sets {unread[0]} to {config[unread[0]]!r}")
    return config


def _limit(spec: ModelSpec, folder: Path, config: Mapping[str, Any]) -> int:
    return token_limit(spec.model, folder, config.get("encoder_config") or {})


def load(spec: ModelSpec, folder: Path, device: str) -> Any:
    """The library's model. Refuses a checkpoint that leaves a weight to chance."""
    import torch

    config = _config(spec, folder)
    with MAKING, tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of training, and of what is checked here
        import gliner

        model = gliner.GLiNER.from_pretrained(
            str(_complete(spec, folder, config, Path(place))),
            local_files_only=True,
            map_location=device,
            dtype=getattr(torch, transformer.precision(spec, device)),
        )
    refuse_missing(spec, folder / files.SINGLE, model.model)
    model.data_processor.transformer_tokenizer.model_max_length = _limit(spec, folder, config)
    return model


def _complete(spec: ModelSpec, folder: Path, config: Mapping[str, Any], place: Path) -> Path:
    """The folder, or one in `place` that stands for it and finds on disk what the checkpoint leaves to the hub."""
    outside = _outside(spec, folder, config)
    if not outside:
        return folder
    for file in folder.iterdir():
        if file.name != CONFIG:
            (place / file.name).symlink_to(file.resolve())
    (place / CONFIG).write_text(json.dumps({**config, **outside}))
    return place


def _outside(spec: ModelSpec, folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Encoders that the config names → the folder with their tokenizer and config."""
    needed = []
    if not (folder / "tokenizer_config.json").is_file() or not config.get("encoder_config"):
        needed.append("model_name")
    if config.get("labels_encoder") and not (
        (folder / _LABELS_TOKENIZER / "tokenizer_config.json").is_file() and config.get("labels_encoder_config")
    ):
        needed.append("labels_encoder")
    revisions = spec.load.get("tokenizers", {})
    found = {}
    for name in needed:
        if config[name] not in revisions:
            wrong = f"needs the tokenizer of {config[name]}: say its revision in the entry's load.tokenizers"
            raise load_failed(spec.model, UNSUPPORTED, wrong)
        found[name] = str(hub.tokenizer(spec, config[name], revisions[config[name]]))
    return found
