"""API keys that compete before a real gateway and a real worker, on both brokers."""

import asyncio
import time
from pathlib import Path

import httpx

from catalog.keys import KeyRecord, KeySnapshot, generate
from catalog.snapshot import Snapshot
from inference.gateway import Gateway, Limits
from inference.lean import LeanHandler
from tests.gateway.conftest import Held, until
from tests.service.harness import Fleet, Services, fake_model
from tests.service.harness import Gateway as StandIn

MODEL = fake_model("fake/shared", forward_s=0.1, max_items=16)  # 160 a second
FLOOD, RUSH, SINGLES = 2000, 20, 20
KEYS = {name: generate() for name in ("flood", "single")}


async def call(client: httpx.AsyncClient, name: str) -> float:
    """Seconds until it was answered."""
    started = time.monotonic()
    headers = {"Authorization": f"Bearer {KEYS[name].text}"}
    response = await client.post("/v1/encode/fake/shared", json={"items": ["x" * 32]}, headers=headers)
    assert response.status_code == 200, response.text
    return time.monotonic() - started


async def test_a_flood_of_one_key_keeps_no_other_key_waiting(
    fleet: Fleet, gateway: StandIn, services: Services, tmp_path: Path
) -> None:
    """2,000 calls of one key come first; a call of another waits for a few batches, not for the flood's end."""
    gateway.serve(MODEL)
    fleet.start()
    records = [KeyRecord(key.prefix, key.digest, name, "interactive") for name, key in KEYS.items()]
    app = LeanHandler(
        lambda: Gateway(
            broker_url=services.broker_url,
            redis_url=services.redis_url,
            data_dir=tmp_path,
            catalog=Held(Snapshot(1, (MODEL,))),
            keys=Held(KeySnapshot(records)),
            limits=Limits(request_timeout_s=110),
            record_usage=lambda amounts: None,
            require_keys=True,
        )
    )
    transport = httpx.ASGITransport(app=app)
    async with app.running() as real, httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        await until(lambda: real.mailbox.connected and real.publisher.connected)
        await asyncio.gather(*(call(client, "single") for _ in range(160)))  # the pace is learned
        await until(lambda: real.queues.forecast(MODEL.spec.model, "interactive", time.monotonic()) is not None)
        idle = sorted([await call(client, "single") for _ in range(SINGLES)])
        flood = []
        for _ in range(FLOOD // RUSH):  # the clients share their loop with the gateway, which must not stand still
            flood += [asyncio.create_task(call(client, "flood")) for _ in range(RUSH)]
            await asyncio.sleep(0.03)
        beside = sorted([await call(client, "single") for _ in range(SINGLES)])
        still_waiting = sum(not one.done() for one in flood)
        await asyncio.gather(*flood)
    assert still_waiting > FLOOD / 4  # they competed all the time
    assert beside[-2] < 8 * idle[-2]
