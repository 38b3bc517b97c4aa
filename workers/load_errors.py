"""Why a model cannot be loaded, in words for its callers."""

from protocol.errors import ModelLoadFailed
from protocol.spec import ModelSpec


def too_large(spec: ModelSpec, need: int, capacity: int) -> ModelLoadFailed:
    return ModelLoadFailed(
        f"model {spec.model!r} needs {need} bytes; the device's budget is {capacity} bytes, some of it perhaps pinned",
        extra={"error_class": "TOO_LARGE", "permanent": False},
    )


def load_failed(spec: ModelSpec, kind: str) -> ModelLoadFailed:
    """`kind` as the engine or the dispatcher names the failure."""
    reason, error_class = {
        "memory": ("the device ran out of memory", "OOM"),
        "hung": ("it took too long", "TIMEOUT"),
        "lost": ("the engine process ended", "ENGINE"),
        "spec": ("its entry holds a value that no engine can be told", "ENTRY"),
    }.get(kind, ("it cannot be read", "UNKNOWN"))
    return ModelLoadFailed(
        f"model {spec.model!r} could not be loaded: {reason}",
        extra={"error_class": error_class, "permanent": False},
    )


def bundle_unusable(spec: ModelSpec, reason: Exception) -> ModelLoadFailed:
    """`reason` is a sentence for callers: which command makes the bundle usable."""
    return ModelLoadFailed(
        f"model {spec.model!r} could not be loaded: {reason}",
        extra={"error_class": "BUNDLE", "permanent": True},
    )
