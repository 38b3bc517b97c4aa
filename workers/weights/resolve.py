"""Finds a model's folder: the operator's own, a package that ships it, the Hugging Face cache, the hub, in this order.

Blocks as long as a download takes, so it runs on a thread of its own; two processes that want the same files at once
share one download or conversion.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from protocol.spec import ModelSpec
from workers.weights import files, hub, packages, pickled
from workers.weights.failures import NOT_FOUND, load_failed

log = logging.getLogger("shoal.weights")

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")

Progress = Callable[[float], None]


class Config(Protocol):
    """The part of a worker's configuration that decides where to look."""

    @property
    def models_folder(self) -> Path | None: ...
    @property
    def offline(self) -> bool: ...
    @property
    def data(self) -> Path: ...


def resolve(spec: ModelSpec, config: Config, progress: Progress = lambda share: None) -> Path:
    """The folder with this model's files, all there and whole. Raises ModelLoadFailed, naming every place tried."""
    for name in (spec.model, spec.source.repo):
        if name is not None and not _SAFE_NAME.fullmatch(name):
            raise load_failed(spec.model, NOT_FOUND, "its name is not one that a folder may have")
    places: list[Callable[[], Path | str]] = [
        lambda: _operators_folder(spec, config),
        lambda: packages.find(spec, config.data / "weights"),
        lambda: hub.cached(spec),
        lambda: hub.download(spec, config.offline, config.data / "weights", progress),
    ]
    refusals: list[str] = []
    for look in places:
        found = look()
        if isinstance(found, Path):
            found = pickled.converted(spec, found, config.data / "weights")
            files.check(spec.model, found)
            hub.fetch_tokenizers(spec, config.offline)
            log.info("files found", extra={"model": spec.model, "folder": str(found)})
            return found
        refusals.append(found)
    raise load_failed(spec.model, NOT_FOUND, f"no files found. Looked at: {'; '.join(refusals)}")


def _operators_folder(spec: ModelSpec, config: Config) -> Path | str:
    """What the entry names, else `<folder>/<org>/<name>`, as the model or as its repo is called."""
    if spec.source.folder is not None:
        named = Path(spec.source.folder)
        return named if named.is_dir() else "the entry's source.folder (no such folder)"
    if config.models_folder is None:
        return "the operator's folder (SHOAL_MODELS is not set)"
    for name in (spec.model, spec.source.repo):
        if name is not None and (config.models_folder / name).is_dir():
            return config.models_folder / name
    return f"the operator's folder SHOAL_MODELS ({spec.model} is not in it)"
