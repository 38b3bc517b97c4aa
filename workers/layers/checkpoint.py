"""Reads what a text encoder's folder says of itself: sentence-transformers' files, config.json; no weights, no torch.

The entry's `load:` may say what the files do not, or otherwise:

    pooling               mean, cls, lasttoken, max, mean_sqrt_len_tokens or weightedmean; needed without modules.json
    normalize             whether vectors are made unit length
    prompts               name → text put before the input; `query` and `document` are the two that options can ask for
    instruction_template  a query prompt with `{instruction}` in it, for models that take one
    dtype                 of the weights on a GPU (float32, bfloat16, float16); a CPU always computes in float32
    pickles               files of torch.save in its folder; `workers.weights.pickled` has made safetensors of them
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from protocol.spec import ModelSpec
from workers.weights.failures import CORRUPT, UNSUPPORTED, load_failed

POOLINGS = ("mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean")
DTYPES = ("float32", "bfloat16", "float16")

# config.json's model_type of models that count positions from pad_token_id + 1
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm", "mpnet")

_LOAD_OPTIONS = ("pooling", "normalize", "prompts", "instruction_template", "dtype", "pickles")
_IGNORED_MODULES = ("Dropout",)
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
FEATURES = "feature-extraction"  # what sentence-transformers calls the task of plain encoders
UNBOUNDED = 1 << 20  # tokenizers without a limit say 10^30


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer after pooling."""

    folder: Path
    activation: str  # a class of torch.nn


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that preparing, loading and finishing need to know beside weights and vocabulary."""

    folder: Path  # of the transformer: config, weights, tokenizer
    config: Mapping[str, Any]
    pooling: tuple[str, ...]  # several are concatenated
    normalize: bool
    max_tokens: int
    include_prompt: bool = True  # whether the prompt's tokens are pooled too
    dense: tuple[Dense, ...] = ()
    lower_case: bool = False  # beside what the tokenizer does
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    instruction_template: str | None = None
    modules: tuple[tuple[str, Path], ...] = ()  # the family's own: class and folder, in order

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def position_offset(self) -> int:
        """The position of a text's first token."""
        return _first_position(self.config)


def read(
    spec: ModelSpec,
    folder: Path,
    *,
    tasks: Sequence[str] = (FEATURES,),
    own: Collection[str] | None = None,
    options: Collection[str] = (),
) -> Checkpoint:
    """Raises ModelLoadFailed, naming the file, for anything it cannot honour.

    `tasks` are what the transformer may be made for. A family that does not pool names the modules it reads itself
    in `own`, and what else it reads of the entry's `load:` in `options`.
    """
    check_options(spec, options)
    return _Folder(spec, folder, tasks, own).checkpoint()


def count_positions(encoder: Mapping[str, Any]) -> int | None:
    """How many tokens have a position, by the config of an encoder; None where positions are relative alone."""
    positions = encoder.get("max_position_embeddings")
    if not positions or encoder.get("position_biased_input") is False:
        return None
    return int(positions) - _first_position(encoder)


def token_limit(model: str, folder: Path, encoder: Mapping[str, Any]) -> int:
    """How many tokens an encoder reads at once, special ones included, by its tokenizer's file and its positions."""
    own = read_json(model, folder / "tokenizer_config.json", {}).get("model_max_length")
    return int(min(limit for limit in (own, count_positions(encoder), UNBOUNDED) if limit))


def _first_position(encoder: Mapping[str, Any]) -> int:
    return int(encoder.get("pad_token_id") or 0) + 1 if encoder.get("model_type") in OFFSET_POSITIONS else 0


def read_json(model: str, file: Path, default: Any = None) -> Any:
    """The document in `file`, `default` if there is no such file. Raises ModelLoadFailed if it is not JSON."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return default
    except ValueError:
        raise load_failed(model, CORRUPT, f"its file {file.name} is not JSON") from None


def check_options(spec: ModelSpec, own: Collection[str] = ()) -> None:
    """Raises ModelLoadFailed for a `load:` of the entry that means nothing, to this module or to the family's `own`."""
    for name in spec.load:
        if name not in (*_LOAD_OPTIONS, *own):
            known = ", ".join((*_LOAD_OPTIONS, *own))
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: {known}")
    for name, allowed in (("pooling", POOLINGS), ("dtype", DTYPES)):
        value = spec.load.get(name)
        if value is not None and value not in allowed:
            wanted = ", ".join(allowed)
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is {value!r}, not one of {wanted}")
    if "{instruction}" not in spec.load.get("instruction_template", "{instruction}"):
        raise load_failed(spec.model, UNSUPPORTED, "its entry's load.instruction_template lacks {instruction}")


class _Folder:
    """One folder being read."""

    def __init__(self, spec: ModelSpec, folder: Path, tasks: Sequence[str], own: Collection[str] | None) -> None:
        self._spec = spec
        self._tasks = tasks
        self._own = own
        self._modules: list[tuple[str, Path]] = []
        self._folder = folder
        self._pooling: tuple[str, ...] = ()
        self._include_prompt = True
        self._dense: list[Dense] = []
        self._normalize = False
        self._transformer = folder

    def checkpoint(self) -> Checkpoint:
        load = self._spec.load
        for module in self._json(self._folder / "modules.json", []):
            self._read_module(str(module["type"]).rsplit(".", 1)[-1], self._inside(module["path"]))
        config = self._json(self._transformer / "config.json")
        if config is None:
            raise self._unsupported("config.json", "is missing")
        sentences = next(iter(sorted(self._transformer.glob("sentence_*_config.json"))), self._transformer / "none")
        settings = self._json(sentences, {})
        if settings.get("transformer_task", self._tasks[0]) not in self._tasks:
            raise self._unsupported(sentences.name, f"asks for {settings['transformer_task']!r}")
        published = self._json(self._folder / "config_sentence_transformers.json", {})
        return Checkpoint(
            folder=self._transformer,
            config=config,
            pooling=self._pooling_or_fail(),
            normalize=load.get("normalize", self._normalize),
            max_tokens=self._max_tokens(config, settings),
            include_prompt=self._include_prompt,
            dense=tuple(self._dense),
            lower_case=bool(settings.get("do_lower_case")),
            prompts={**(published.get("prompts") or {}), **load.get("prompts", {})},
            default_prompt=published.get("default_prompt_name"),
            instruction_template=load.get("instruction_template"),
            modules=tuple(self._modules),
        )

    def _read_module(self, kind: str, folder: Path) -> None:
        if self._own is not None and kind in self._own:
            self._modules.append((kind, folder))
        elif kind in ("Transformer", "MLMTransformer"):
            self._transformer = folder
        elif self._normalize and kind not in _IGNORED_MODULES:
            raise self._unsupported("modules.json", f"puts {kind} behind Normalize")
        elif kind == "Pooling":
            self._read_pooling(self._json(folder / "config.json", {}))
        elif kind == "Dense":
            self._read_dense(folder)
        elif kind == "Normalize":
            self._normalize = True
        elif kind not in _IGNORED_MODULES:
            raise self._unsupported("modules.json", f"has a module {kind}")

    def _read_pooling(self, config: Mapping[str, Any]) -> None:
        """Files since sentence-transformers 5 name the modes, those before have a flag for each."""
        modes = config.get("pooling_mode")
        if modes is None:
            flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
            modes = [name.removeprefix("pooling_mode_") for name in flags]
        modes = [modes] if isinstance(modes, str) else modes
        names = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max", "weightedmean_tokens": "weightedmean"}
        self._pooling = tuple(names.get(mode, mode) for mode in modes)
        for mode in self._pooling:
            if mode not in POOLINGS:
                raise self._unsupported("1_Pooling/config.json", f"asks for the pooling {mode!r}")
        self._include_prompt = config.get("include_prompt", True)

    def _read_dense(self, folder: Path) -> None:
        config = self._json(folder / "config.json", {})
        activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
        plain = config.get("module_input_name", "sentence_embedding") == "sentence_embedding"
        if activation not in ACTIVATIONS or config.get("use_residual") or not plain:
            raise self._unsupported(f"{folder.name}/config.json", "describes a Dense module of an unknown kind")
        if not (folder / "model.safetensors").is_file():
            raise self._unsupported(f"{folder.name}/model.safetensors", "is missing")
        self._dense.append(Dense(folder, activation))

    def _pooling_or_fail(self) -> tuple[str, ...]:
        if "pooling" in self._spec.load:
            return (self._spec.load["pooling"],)
        if not self._pooling and self._own is None:
            raise self._unsupported("modules.json", "names no pooling; say load.pooling in the catalog entry")
        return self._pooling

    def _max_tokens(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
        """The least of what the entry, sentence-transformers' file or else the tokenizer's, and the positions allow."""
        own = settings.get("max_seq_length")
        if own is None:
            own = self._json(self._transformer / "tokenizer_config.json", {}).get("model_max_length")
        limits = [self._spec.max_tokens, own, count_positions(config.get("text_config", config))]
        limits = [limit for limit in limits if limit and limit < UNBOUNDED]
        return int(min(limits, default=512))

    def _inside(self, path: str) -> Path:
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts:
            raise self._unsupported("modules.json", "names a path outside its folder")
        return self._folder / parts

    def _json(self, file: Path, default: Any = None) -> Any:
        return read_json(self._spec.model, file, default)

    def _unsupported(self, file: str, what: str) -> Exception:
        return load_failed(self._spec.model, UNSUPPORTED, f"its file {file} {what}")
