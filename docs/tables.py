"""The tables that docs/generate.py puts into pages, each built from the code that it documents."""

from collections.abc import Callable, Iterable

from protocol import errors

ERROR_MEANINGS = {
    "InvalidInput": "The body, a field or an option is wrong; `param` names it.",
    "InputTooLong": "An item is longer than the model reads and `overflow` is `error`.",
    "BodyTooLarge": "The body is larger than `SHOAL_MAX_BODY_BYTES`.",
    "Unauthorized": "No API key, or one that is unknown, revoked or expired.",
    "Forbidden": "The key is good, but not for this.",
    "RouteNotFound": "There is no such path.",
    "MethodNotAllowed": "The path is right, the method is not; `Allow` lists those it has.",
    "ModelNotFound": "The model or profile is not in the catalog; `suggestions` has the nearest names.",
    "TaskNotFound": "No task has this id, or it was kept for its time and is gone.",
    "TaskFinished": "The task has ended, so it cannot be cancelled.",
    "Cancelled": "The task was cancelled before it ran.",
    "TooManyRequests": "The key has used its share for now.",
    "InferenceError": "The forward failed; the message holds no internals.",
    "NonFiniteOutput": "The model gave NaN or infinity for this item.",
    "WorkerLost": "The request was started three times and each time its worker vanished.",
    "ModelLoadFailed": "The model's weights could not be loaded; the error says why.",
    "QueueFull": "Too many calls wait already.",
    "QueueUnavailable": "The broker or Redis cannot be reached.",
    "Provisioning": "No worker serves this model's pool yet.",
    "ModelLoading": "The model is being loaded and the bounded wait is over.",
    "ResourceExhausted": "The device has no memory left for this even alone.",
    "TransportFailure": "The reply was lost on its way; the call may have run.",
    "Expired": "The deadline passed while the request was queued; it did not run.",
    "GatewayTimeout": "The deadline passed while the request was running.",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; cells may hold anything but line breaks."""
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def error_classes(root: type[errors.ShoalError] = errors.ShoalError) -> list[type[errors.ShoalError]]:
    """Every class below `root`, parents before children."""
    return [kind for child in root.__subclasses__() for kind in (child, *error_classes(child))]


def error_table() -> str:
    rows = (
        (
            str(kind.status),
            f"`{kind.code}`",
            "yes" if kind.default_retry_after is not None else "",
            ERROR_MEANINGS[kind.__name__],
        )
        for kind in sorted(error_classes(), key=lambda kind: kind.status)
    )
    return table(("status", "code", "retry", "meaning"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "errors": error_table,
}
