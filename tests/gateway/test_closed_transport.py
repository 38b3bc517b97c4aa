"""uvloop raises a RuntimeError where asyncio raises an OSError: at a connection that was reset while it was made."""

import time
from pathlib import Path
from typing import Any

import pytest

from inference.payloads import PayloadStore
from inference.tasks import TaskStore
from protocol.errors import QueueUnavailable
from protocol.messages import Payload, Request


class ClosedRedis:
    """Fails as redis-py does on such a connection."""

    def register_script(self, script: str) -> None: ...

    async def info(self, section: str) -> dict[str, Any]:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    def pipeline(self, transaction: bool) -> "ClosedRedis":
        return self

    async def __aenter__(self) -> None:
        await self.info("memory")

    async def __aexit__(self, *error: object) -> None: ...


async def test_a_payload_meets_a_closed_transport_with_an_error_to_retry_on(tmp_path: Path) -> None:
    now = time.time()
    store = PayloadStore(ClosedRedis(), tmp_path)  # type: ignore[arg-type]
    request = Request("0f8fad5b-d9cb-469f-a165-70867728950e", "encode", "acme/fake", "d", 1, 1, now + 60, now)
    with pytest.raises(QueueUnavailable):
        await store.keep(request, Payload([{"text": "x"}]))


async def test_a_task_meets_a_closed_transport_with_an_error_to_retry_on() -> None:
    store = TaskStore(ClosedRedis(), 60)  # type: ignore[arg-type]
    with pytest.raises(QueueUnavailable):
        await store.get("0f8fad5b-d9cb-469f-a165-70867728950e", None)
