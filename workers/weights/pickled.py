"""Model folders whose weights are files of torch.save: converted once, for entries that name them in `load.pickles`."""

import hashlib
import shutil
from pathlib import Path

from protocol.spec import ModelSpec
from workers.weights import convert_torch, files
from workers.weights.failures import CORRUPT, DISK, UNSUPPORTED, load_failed
from workers.weights.once import make_once

# `pytorch_model.bin` is what transformers calls `model.safetensors` otherwise; others keep their name.
WHOLE = "pytorch_model.bin"
_DESCRIBE = ("*.json", "*.txt", "*.model", "*.jinja")


def named(spec: ModelSpec) -> tuple[str, ...]:
    """The files that the entry names. Raises ModelLoadFailed for what cannot be names of files in its folder."""
    names = spec.load.get("pickles", ())
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and _is_plain(name) for name in names):
        raise load_failed(spec.model, UNSUPPORTED, "its entry's load.pickles is not a list of names of files")
    return tuple(names)


def _is_plain(name: str) -> bool:
    return Path(name).name == name and name.endswith((".bin", ".pt", ".pth"))


def are_there(spec: ModelSpec, folder: Path) -> bool:
    names = named(spec)
    return bool(names) and all((folder / name).is_file() for name in names)


def converted(spec: ModelSpec, folder: Path, cache: Path) -> Path:
    """`folder`, or one in `cache` with the same model as safetensors. Raises ModelLoadFailed."""
    if not are_there(spec, folder) or files.shards(folder):
        return folder
    names = named(spec)
    state = [(name, (folder / name).stat().st_size, (folder / name).stat().st_mtime_ns) for name in names]
    digest = hashlib.sha256(repr([str(folder.resolve()), *state]).encode()).hexdigest()[:16]
    try:
        return make_once(cache / f"{spec.model.replace('/', '--')}-{digest}", lambda draft: _fill(draft, folder, names))
    except files.Damaged as damage:
        raise load_failed(spec.model, CORRUPT, f"its weights cannot be converted: {damage}") from None
    except OSError as error:
        what = f"its converted files could not be stored in the data folder ({error.strerror or 'disk error'})"
        raise load_failed(spec.model, DISK, what) from error


def _fill(draft: Path, folder: Path, names: tuple[str, ...]) -> None:
    for pattern in _DESCRIBE:
        for file in [*folder.glob(pattern), *folder.glob(f"*/{pattern}")]:
            target = draft / file.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
    for name in names:
        own = files.SINGLE if name == WHOLE else f"{Path(name).stem}.safetensors"
        convert_torch.convert(folder / name, draft / own)
