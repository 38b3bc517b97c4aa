"""Lines of text in an image, by RapidOCR with the weights that its own package ships: nothing is downloaded."""

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from protocol.spec import ModelSpec
from workers import devices
from workers.weights.failures import NOT_FOUND, load_failed

_PACKAGE = "rapidocr"
_WEIGHTS = {
    "det": "PP-OCRv6_det_small.onnx",
    "cls": "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "rec": "PP-OCRv6_rec_small.onnx",
}
_SIDE = 64  # of the blank image whose reading loads all three networks


def weights(spec: ModelSpec) -> dict[str, Path]:
    """What finds, turns and reads lines. Raises ModelLoadFailed when the package or a file of it is missing."""
    try:
        folder = Path(str(metadata.distribution(_PACKAGE).locate_file(f"{_PACKAGE}/models")))
    except metadata.PackageNotFoundError:
        raise load_failed(spec.model, NOT_FOUND, f"the package {_PACKAGE} is not installed") from None
    found = {name: folder / file for name, file in _WEIGHTS.items()}
    missing = [file.name for file in found.values() if not file.is_file()]
    if missing:
        raise load_failed(spec.model, NOT_FOUND, f"the package {_PACKAGE} lacks {', '.join(missing)}; reinstall it")
    return found


def bytes_of(spec: ModelSpec, device: str) -> int:
    """It runs on the CPU whatever the worker's device is, so elsewhere it takes nothing of that device."""
    return sum(file.stat().st_size for file in weights(spec).values()) if device == "cpu" else 0


class LineReader:
    """Loaded when made. Used by one thread at a time: the library keeps options as state."""

    def __init__(self, spec: ModelSpec) -> None:
        from rapidocr import RapidOCR

        paths = {f"{name.title()}.model_path": str(path) for name, path in weights(spec).items()}
        threads = {"EngineConfig.onnxruntime.intra_op_num_threads": devices.cpu_count()}
        self._engine: Any = RapidOCR(params={**paths, **threads, "Global.log_level": "error"})
        blank = np.full((_SIDE, _SIDE, 3), 255, np.uint8)
        self._engine(blank, use_det=True)
        self._engine(blank, use_det=False)

    def read(self, pixels: np.ndarray) -> list[dict[str, Any]]:
        """Every line of an RGB image, from the top, unsure ones too: text, score, corners around it."""
        found = self._engine(np.ascontiguousarray(pixels[:, :, ::-1]), use_det=True, text_score=0.0)
        if found.txts is None:
            return []
        return [
            {"text": text, "score": float(score), "bbox": _box(corners)}
            for text, score, corners in zip(found.txts, found.scores, found.boxes, strict=True)
        ]


def text_of(lines: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(line["text"] for line in lines)


def _box(corners: Any) -> list[float]:
    """The upright box around four corners."""
    points = np.asarray(corners, float)
    return [*points.min(0).tolist(), *points.max(0).tolist()]
