"""A transformer read from its folder, whole or not at all; torch and transformers are imported when one is read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.spec import ModelSpec
from workers.layers.checkpoint import read_json
from workers.layers.making import MAKING
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# The pooler behind [CLS] serves BERT's training task; no vector comes from it, and many checkpoints leave it out.
UNUSED = ("pooler.",)


def needed(spec: ModelSpec, folder: Path | None) -> Path:
    """Raises ModelLoadFailed for an entry without a source of files."""
    if folder is None:
        raise load_failed(spec.model, UNSUPPORTED, "its entry says no source of its files")
    return folder


def precision(spec: ModelSpec, device: str) -> str:
    """A CPU computes in float32 whatever the entry says: half precision is slower there, not faster."""
    return "float32" if device == "cpu" else str(spec.load.get("dtype", "float32"))


def estimate_bytes(spec: ModelSpec, folder: Path, device: str) -> int:
    """Device memory of the weights in `folder`, in the dtype that `read` will use."""
    return files.count_numbers(folder) * _BYTES[precision(spec, device)]


def read(
    spec: ModelSpec, folder: Path, device: str, *, auto: str = "AutoModel", unused: tuple[str, ...] = UNUSED
) -> Any:
    """With attention that any model has; `auto` is the class of transformers that knows its heads.

    Refuses a checkpoint that leaves a weight to chance, but for those whose name has one of `unused` in it.
    """
    import torch
    import transformers

    if spec.remote_code:
        refuse_foreign_code(spec, folder)
    quiet: Any = transformers.utils.logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()  # its report of missing weights: what matters of it is checked below
    with MAKING:
        model, found = getattr(transformers, auto).from_pretrained(
            folder,
            dtype=getattr(torch, precision(spec, device)),
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=spec.remote_code,
            output_loading_info=True,
        )
    refuse_chance(spec, found, (*unused, "position_ids"))
    return model.to(device).eval()


def refuse_foreign_code(spec: ModelSpec, folder: Path) -> None:
    """An entry approves one repo's code at one commit; a config may name another repo's, at whatever is its latest."""
    for name in read_json(spec.model, folder / "config.json", {}).get("auto_map", {}).values():
        repo, is_foreign, _ = str(name).partition("--")
        if is_foreign:
            wrong = (
                f"its config.json takes code from the repo {repo!r}, which its entry does not approve: put those files "
                "into the model's own folder, and name them in auto_map without a repo"
            )
            raise load_failed(spec.model, UNSUPPORTED, wrong)


def refuse_chance(spec: ModelSpec, found: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """`found` is the loading info of `from_pretrained`. Raises ModelLoadFailed for a weight it did not find whole."""
    missing = [key for key in found["missing_keys"] if not any(name in key for name in allowed)]
    if missing or found["mismatched_keys"]:
        names = [*sorted(missing), *(key for key, *_ in found["mismatched_keys"])]
        wrong = f"weights missing or of the wrong shape: {', '.join(names[:5])}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)


def bytes_of(*models: Any) -> int:
    """What their weights and buffers hold, those they share counted once."""
    from workers.layers.linear import ReorderedLinear

    tensors = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for model in models
        for tensor in [*model.parameters(), *model.buffers()]
    }
    layers = {id(layer): layer for model in models for layer in model.modules() if isinstance(layer, ReorderedLinear)}
    total: int = sum(tensors.values()) + sum(layer.bytes for layer in layers.values())
    return total


def dtype_of(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")
