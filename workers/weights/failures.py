"""The one way in which files fail a load: a ModelLoadFailed that says which kind of failure and whether it lasts."""

from protocol.errors import ModelLoadFailed

# `extra["error_class"]` of such an error
GATED = "GATED"  # the hub wants a token, or a licence accepted
NOT_FOUND = "NOT_FOUND"  # in none of the places a model may be in
NETWORK = "NETWORK"  # the hub could not be reached, or broke off
DISK = "DISK"  # no room, or not writable
CORRUPT = "CORRUPT"  # files that are cut short or contradict each other
UNSUPPORTED = "UNSUPPORTED"  # whole files of a kind that Shoal does not read

_MAY_PASS = {NETWORK, DISK}


def load_failed(model: str, error_class: str, what: str) -> ModelLoadFailed:
    """`what` is a sentence without paths, since callers see it."""
    return ModelLoadFailed(
        f"model {model!r}: {what}",
        extra={"error_class": error_class, "permanent": error_class not in _MAY_PASS},
    )
