"""What the log says of a failed batch: enough to find every request, once, and nothing that a caller wrote."""

import asyncio
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from catalog.keys import KeySnapshot
from catalog.snapshot import Snapshot
from inference.gateway import Gateway as RealGateway
from inference.gateway import Limits
from inference.lean import LeanHandler
from tests.gateway.conftest import Held
from tests.service.harness import Fleet, Gateway, Services, fake_model, wait_until

SLOW_START = fake_model("fake/failing", forward_s=0.2)


def test_a_failing_batch_is_one_trace_and_a_line_for_each_request(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    """S099: 32 requests meet in one batch and all fail."""
    redis_gateway.serve(SLOW_START)
    worker = redis_fleet.start()
    first = redis_gateway.send(SLOW_START, "fine")  # they wait behind it, and leave together
    ids = [redis_gateway.send(SLOW_START, "boom mysecret") for _ in range(32)]
    redis_gateway.collect([first, *ids], timeout=60)

    wait_until(lambda: worker.log.read_text().count("item given up") >= 32, what="32 lines")

    log = worker.log.read_text()
    assert len(re.findall(r"File .*fake\.py", log)) <= 2  # the frames of one trace
    assert log.count("raised RuntimeError at") == 1
    lines = [line for line in log.splitlines() if "item given up" in line]
    assert sorted(one for one in ids for line in lines if one in line) == sorted(ids)
    assert all(re.search(r"batch=\d+", line) for line in lines)
    assert "mysecret" not in log


@pytest.mark.parametrize("blow", [signal.SIGSTOP, signal.SIGKILL])
async def test_readiness_ends_when_no_worker_can_answer(
    redis_fleet: Fleet, redis_gateway: Gateway, on_redis: Services, tmp_path: Path, blow: signal.Signals
) -> None:
    """S095: a worker that is frozen or gone is noticed within 15 s, and so is one that is back."""
    redis_gateway.serve(SLOW_START)
    worker = redis_fleet.start()
    app = LeanHandler(
        lambda: RealGateway(
            broker_url=on_redis.broker_url,
            redis_url=on_redis.redis_url,
            data_dir=tmp_path,
            catalog=Held(Snapshot(1, (SLOW_START,))),
            keys=Held(KeySnapshot()),
            limits=Limits(),
            record_usage=lambda amounts: None,
        )
    )
    transport = httpx.ASGITransport(app=app)
    async with app.running(), httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        assert await ready(client, 200, 15) < 15
        worker.signal(blow)
        assert await ready(client, 503, 30) < 15
        assert (await client.get("/readyz")).json()["reasons"][0]["code"] == "no_workers"
        assert (await client.get("/livez")).status_code == 200
        if blow == signal.SIGSTOP:
            worker.signal(signal.SIGCONT)
        else:
            redis_fleet.start()
        assert await ready(client, 200, 30) < 30


async def ready(client: httpx.AsyncClient, status: int, within: float) -> float:
    """Seconds until readiness says so."""
    begun = time.monotonic()
    while (await client.get("/readyz")).status_code != status:
        assert time.monotonic() - begun < within
        await asyncio.sleep(0.05)
    return time.monotonic() - begun
