"""A worker that is of no use must not look alive."""

import subprocess
import sys
import time
from typing import Any

import pytest

from tests.service.harness import ROOT, Fleet, Gateway, fake_model, wait_until
from workers.heartbeat import EXIT_STATUS
from workers.runtime import WEDGED_S, Runtime


def test_a_beat_says_how_the_worker_fares(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model = fake_model("fake/beating")
    redis_gateway.serve(model)
    worker = redis_fleet.start(SHOAL_POOL="default")
    redis_gateway.collect([redis_gateway.send(model)])
    beat: dict[str, Any] = wait_until(
        lambda: (found := redis_gateway.beat(worker)).get("models") and found, what="a beat with a model"
    )
    assert (beat["id"], beat["pool"], beat["device"]) == (worker.id, "default", "cpu")
    assert beat["pid"] == worker.process.pid
    assert beat["models"][0]["model"] == "fake/beating"
    assert redis_gateway.redis.zscore("shoal:workers", worker.id)


def test_an_ailing_process_ends_at_once_with_a_status_of_its_own(redis_url: str) -> None:
    program = f"""
import time
from workers.heartbeat import Heartbeat
Heartbeat({redis_url!r}, "w", dict, lambda: "a test says so").start()
time.sleep(30)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert done.returncode == EXIT_STATUS
    assert "a test says so" in done.stderr


class Dispatcher:
    def __init__(self, alive: bool) -> None:
        self.alive = alive


def _runtime(*, alive: bool = True, consuming: bool = True, silent_s: float = 0.0) -> Runtime:
    runtime = Runtime()
    runtime.dispatcher = Dispatcher(alive)  # type: ignore[assignment]
    runtime.is_consuming = consuming
    runtime.hub_ticked = time.monotonic() - silent_s
    return runtime


@pytest.mark.parametrize(
    ("state", "ailment"),
    [
        ({}, None),
        ({"alive": False}, "the dispatcher died"),
        ({"silent_s": WEDGED_S + 1}, "the event loop has not turned for 30 s"),
        ({"silent_s": WEDGED_S + 1, "consuming": False}, None),
    ],
    ids=["well", "no dispatcher", "wedged loop", "waiting for its broker"],
)
def test_what_ails_a_worker(state: dict[str, Any], ailment: str | None) -> None:
    assert _runtime(**state).ailment() == ailment
