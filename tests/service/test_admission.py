"""Overload, the real gateway before a real worker: who is let in is answered in time, the rest hears at once."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from catalog.keys import KeySnapshot
from catalog.snapshot import Snapshot
from inference.gateway import Gateway, Limits
from inference.lean import LeanHandler
from tests.gateway.conftest import Held, until
from tests.service.harness import Fleet, Services, fake_model
from tests.service.harness import Gateway as StandIn

MODEL = fake_model("fake/busy", forward_s=0.1, max_items=4)  # forty a second
TIMEOUT_S = 1.5
OFFERED_S = 4.0
PERIOD_S = 1 / 120


def real_gateway(services: Services, folder: Path) -> LeanHandler:
    return LeanHandler(
        lambda: Gateway(
            broker_url=services.broker_url,
            redis_url=services.redis_url,
            data_dir=folder,
            catalog=Held(Snapshot(1, (MODEL,))),
            keys=Held(KeySnapshot()),
            limits=Limits(request_timeout_s=TIMEOUT_S),
            record_usage=lambda amounts: None,
        )
    )


async def call(client: httpx.AsyncClient) -> tuple[int, float, Any]:
    """Status, seconds, and when to try again."""
    started = time.monotonic()
    response = await client.post("/v1/encode/fake/busy", json={"items": ["x" * 32]})
    return response.status_code, time.monotonic() - started, response.headers.get("retry-after")


async def test_overload_is_refused_at_the_door_and_the_rest_answered_in_time(
    fleet: Fleet, gateway: StandIn, services: Services, tmp_path: Path
) -> None:
    gateway.serve(MODEL)
    fleet.start()
    app = real_gateway(services, tmp_path)
    transport = httpx.ASGITransport(app=app)
    async with app.running() as real, httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        await until(lambda: real.mailbox.connected and real.publisher.connected)
        await asyncio.gather(*(call(client) for _ in range(30)))
        await until(lambda: real.queues.forecast("fake/busy", "interactive", time.monotonic()) is not None)
        await asyncio.sleep(1.0)
        calls = []
        for _ in range(round(OFFERED_S / PERIOD_S)):
            calls.append(asyncio.create_task(call(client)))
            await asyncio.sleep(PERIOD_S)
        outcomes = await asyncio.gather(*calls)
    counts = Counter(status for status, _, _ in outcomes)
    refused = [(seconds, after) for status, seconds, after in outcomes if status == 429]
    assert counts[200] >= 0.7 * 40 * OFFERED_S
    assert counts[200] + counts[429] >= 0.98 * counts.total()
    assert max(seconds for seconds, _ in refused) < 0.5
    assert all(0.1 <= float(after) <= TIMEOUT_S for _, after in refused)
