"""What safetensors files say in their headers: whether they are whole, and how many numbers they hold."""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from workers.weights.failures import CORRUPT, UNSUPPORTED, load_failed

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIGS = ("config.json", "modules.json", "gliner_config.json")  # a model's folder has one of them

_MAX_HEADER = 100 << 20


class Damaged(ValueError):
    """A file that cannot be what its name says; the message has no path."""


def header(file: Path) -> dict[str, Any]:
    """Name → `{dtype, shape, data_offsets}` of a safetensors file. Raises Damaged, above all if it is cut short."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER
        if length >= _MAX_HEADER:
            raise Damaged(f"{file.name} is not a safetensors file")
        try:
            tensors: dict[str, Any] = json.loads(stream.read(length))
        except ValueError:
            raise Damaged(f"{file.name} has no readable header") from None
    tensors.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    if size != 8 + length + end:
        raise Damaged(f"{file.name} has {size} bytes where its header promises {8 + length + end}")
    return tensors


def shards(folder: Path) -> list[Path]:
    """The files that hold the weights of the model in this very folder; empty if there are none."""
    index = folder / INDEX
    if not index.is_file():
        return [folder / SINGLE] if (folder / SINGLE).is_file() else []
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise Damaged(f"{INDEX} is not an index of safetensors files") from None
    if any("/" in name or "\\" in name for name in names):
        raise Damaged(f"{INDEX} names a file outside its folder")
    for name in names:
        if not (folder / name).is_file():
            raise Damaged(f"{name}, named in {INDEX}, is missing")
    return [folder / name for name in names]


def count_numbers(folder: Path) -> int:
    """How many numbers the weights in this folder hold, from headers alone."""
    return sum(prod(tensor["shape"]) for file in shards(folder) for tensor in header(file).values())


def check(model: str, folder: Path) -> None:
    """Refuse a folder whose safetensors files are damaged, before anything loads it. Raises ModelLoadFailed."""
    if not any((folder / name).is_file() for name in CONFIGS):
        raise load_failed(model, UNSUPPORTED, f"its folder has none of {', '.join(CONFIGS)}")
    try:
        shards(folder)
        for file in [*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]:
            header(file)
    except Damaged as damage:
        raise load_failed(model, CORRUPT, f"{damage}; delete the folder, or copy it there again") from None
