"""The Hugging Face cache on this machine, and the hub behind it."""

import io
import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.std import tqdm

from protocol.errors import ModelLoadFailed
from protocol.spec import ModelSpec, Source
from workers.weights import files, pickled
from workers.weights.failures import DISK, GATED, NETWORK, NOT_FOUND, load_failed
from workers.weights.once import alone

log = logging.getLogger("shoal.weights")

# The hub hears what is wanted, and not what else is installed here nor what started this process.
constants.HF_HUB_DISABLE_TELEMETRY = True

# Downloads of this process; more would share the same line.
_AT_ONCE = threading.BoundedSemaphore(4)

# Weights as safetensors, what describes them and the tokenizer; pickles only where an entry names them, to be
# converted. Code only where it was approved.
_WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
_TOKENIZER = ["*.json", "*.txt", "*.model"]
_UNWANTED = ["onnx/*", "openvino/*", "*.onnx*", "original/*", "gguf/*"]


def cached(spec: ModelSpec) -> Path | str:
    """The folder in the Hugging Face cache, if everything needed is there; asks nobody."""
    if spec.source.repo is None:
        return "the Hugging Face cache (the entry names no repo)"
    try:
        folder = Path(_snapshot(spec, local_files_only=True))
    except LocalEntryNotFoundError:
        return f"the Hugging Face cache ({_at_revision(spec)} is not in it)"
    if dropped := _drop_damaged(spec, folder):
        return (
            f"the Hugging Face cache ({', '.join(dropped)} of {_at_revision(spec)} was damaged, and is dropped from it)"
        )
    weights = [*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]
    if not (weights or pickled.are_there(spec, folder)) or not any((folder / name).is_file() for name in files.CONFIGS):
        return f"the Hugging Face cache (only part of {_at_revision(spec)} is in it)"
    return folder


def _drop_damaged(spec: ModelSpec, folder: Path) -> list[str]:
    """Names of weights that are not whole. They leave the cache, so that the hub is asked for just these once more."""
    dropped = []
    for file in [*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]:
        try:
            files.header(file)
        except files.Damaged as damage:
            log.warning("damaged file dropped from the cache: %s", damage, extra={"model": spec.model})
            file.resolve().unlink(missing_ok=True)
            file.unlink(missing_ok=True)
            dropped.append(file.name)
    return dropped


def download(spec: ModelSpec, offline: bool, cache: Path, progress: Callable[[float], None]) -> Path | str:
    """Fetch what is missing into the Hugging Face cache. Raises ModelLoadFailed."""
    if spec.source.repo is None:
        return "the hub (the entry names no repo)"
    if offline or constants.is_offline_mode():
        return (
            f"the hub (not asked, since SHOAL_OFFLINE or HF_HUB_OFFLINE is set: unset it, or put the files of "
            f"{_at_revision(spec)} into SHOAL_MODELS/{spec.model})"
        )
    try:
        with _AT_ONCE, alone(cache / f"hub--{spec.source.repo.replace('/', '--')}"):
            total = _check_room(spec)
            return Path(_snapshot(spec, tqdm_class=_bar(total, progress)))
    except (OSError, httpx.HTTPError) as error:  # the hub's errors are both, and they overlap
        log.warning("download failed", extra={"model": spec.model, "reason": f"{type(error).__name__}: {error}"})
        # Planning a download wraps what went wrong.
        reason = error.__cause__ if isinstance(error, DryRunError) else error
        raise _explained(spec, reason or error) from error


def tokenizer(spec: ModelSpec, repo: str, revision: str) -> Path:
    """Config and tokenizer of another repo, from the Hugging Face cache. Raises ModelLoadFailed."""
    try:
        return Path(_tokenizer(repo, revision, local_files_only=True))
    except LocalEntryNotFoundError:
        what = f"the tokenizer of {repo} at {revision[:12]} is not in the Hugging Face cache"
        raise load_failed(spec.model, NOT_FOUND, what) from None


def fetch_tokenizers(spec: ModelSpec, offline: bool) -> None:
    """What the entry's `load.tokenizers` names, so that `tokenizer` finds it. Raises ModelLoadFailed.

    Where no hub may be asked it is left to the family to say what it lacks: folders often have their own tokenizer.
    """
    if offline or constants.is_offline_mode():
        return
    for repo, revision in spec.load.get("tokenizers", {}).items():
        try:
            _tokenizer(repo, revision)
        except (OSError, httpx.HTTPError) as error:
            raise _explained(replace(spec, source=Source(repo, revision)), error) from error


def _tokenizer(repo: str, revision: str, **options: Any) -> Any:
    return huggingface_hub.snapshot_download(
        repo,
        revision=revision,
        allow_patterns=_TOKENIZER,
        ignore_patterns=_UNWANTED,
        cache_dir=constants.HF_HUB_CACHE,
        tqdm_class=_bar(1, lambda share: None),
        **options,
    )


def _snapshot(spec: ModelSpec, **options: Any) -> Any:
    return huggingface_hub.snapshot_download(
        str(spec.source.repo),
        revision=spec.source.revision,
        allow_patterns=[*_WANTED, *pickled.named(spec), *(["*.py"] if spec.remote_code else [])],
        ignore_patterns=_UNWANTED,
        cache_dir=constants.HF_HUB_CACHE,
        **options,
    )


def _check_room(spec: ModelSpec) -> int:
    """Bytes still to download, after making sure that they fit."""
    plan = _snapshot(spec, dry_run=True, tqdm_class=_bar(1, lambda share: None))
    missing = sum(file.file_size or 0 for file in plan if file.will_download)
    folder = Path(constants.HF_HUB_CACHE)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise load_failed(
            spec.model,
            DISK,
            f"its download needs {missing} bytes, the disk with the Hugging Face cache has {free} free; "
            "make room, or set HF_HOME to a larger disk",
        )
    return missing


def _bar(total: int, progress: Callable[[float], None]) -> type[tqdm]:
    """A progress bar that draws nothing and tells `progress` the share of `total` bytes that are here."""

    class Bar(tqdm):  # type: ignore[misc]  # tqdm ships no types
        monitor_interval = 0

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO()})

        def display(self, *args: Any, **kwargs: Any) -> None:
            pass

        def update(self, n: float | None = 1) -> Any:
            done = super().update(n)
            if self.unit == "B":
                progress(min(self.n / max(total, 1), 1.0))
            return done

    return Bar


def _explained(spec: ModelSpec, error: BaseException) -> ModelLoadFailed:
    """What the operator must do about it. GatedRepoError is a RepositoryNotFoundError: the order matters."""
    repo = _at_revision(spec)
    if isinstance(error, GatedRepoError):
        what = f"{repo} is gated: accept its terms on the hub, then give the worker an HF_TOKEN that may read it"
        return load_failed(spec.model, GATED, what)
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        what = f"the hub has no {repo}, or keeps it private (an HF_TOKEN that may read it helps then)"
        return load_failed(spec.model, NOT_FOUND, what)
    network = HfHubHTTPError | LocalEntryNotFoundError | OfflineModeIsEnabled | httpx.HTTPError | ConnectionError
    if isinstance(error, network | TimeoutError):
        return load_failed(spec.model, NETWORK, f"{repo} could not be downloaded; is the hub reachable from here?")
    what = f"{repo} could not be stored in the Hugging Face cache ({getattr(error, 'strerror', None) or 'disk error'})"
    return load_failed(spec.model, DISK, what)


def _at_revision(spec: ModelSpec) -> str:
    return f"{spec.source.repo} at {spec.source.revision[:12]}" if spec.source.revision else str(spec.source.repo)
