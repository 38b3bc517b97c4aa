"""Record what the published SDK sends: `python -m tests.clients.record`. Run it when the pinned SDK changes."""

import sys
from pathlib import Path

from tests.clients import sdk
from tests.clients.stub import Recorder, recorder

# Answers of the product, not of the stub, make these interesting; what they send is in the others.
NOT_RECORDED = {"broken_forward", "not_finite", "cold", "cannot_load", "unknown_model", "get_model_unknown", "no_items"}
NOT_OF_ENCODE = ("score", "extract")  # the stub answers encode alone
VARYING = b"host:"  # the header that differs from run to run


def main() -> int:
    python = sdk.environment(Path.home() / ".cache" / "shoal-tests")
    sdk.RECORDED.mkdir(exist_ok=True)
    with recorder() as server:
        for name in sdk.calls(python):
            if name not in NOT_RECORDED and not name.startswith(NOT_OF_ENCODE):
                _record(server, python, name)
        server.busy = 1
        _record(server, python, "single", "retried")
    return 0


def _record(server: Recorder, python: Path, call: str, name: str | None = None) -> None:
    server.requests.clear()
    sdk.call(python, server.url, call)
    for number, request in enumerate(server.requests):
        suffix = f".{number + 1}" if len(server.requests) > 1 else ""
        (sdk.RECORDED / f"{name or call}{suffix}.http").write_bytes(steady(request))


def steady(request: bytes) -> bytes:
    """The same request without what differs from run to run."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(VARYING)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


if __name__ == "__main__":
    sys.exit(main())
