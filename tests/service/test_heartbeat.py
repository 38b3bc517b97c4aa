"""A worker that is of no use must not look alive."""

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from protocol import beats, names
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


def test_a_beat_says_how_far_the_machines_clock_is_off(redis_url: str) -> None:
    program = f"""
import time
true_time = time.time
time.time = lambda: true_time() + 300
from workers.heartbeat import Heartbeat
Heartbeat({redis_url!r}, "w", lambda: {{"id": "w"}}, lambda: None).start()
time.sleep(1.5)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=20)
    with redis.Redis.from_url(redis_url) as client:
        found = beats.read(client.get(names.worker("w")) or b"")
    assert found is not None
    assert found["clock_ahead_s"] == pytest.approx(300, abs=1)


@dataclass(frozen=True, slots=True)
class Part:
    alive: bool


def _runtime(*, dead: str = "", consuming: bool = True, silent_s: float = 0.0) -> Runtime:
    runtime = Runtime()
    for name in ("dispatcher", "outbox", "intake", "wake", "leases"):
        setattr(runtime, name, Part(alive=name != dead))
    runtime.is_consuming = consuming
    runtime.hub_ticked = time.monotonic() - silent_s
    return runtime


@pytest.mark.parametrize(
    ("state", "ailment"),
    [
        ({}, None),
        ({"dead": "dispatcher"}, "its thread died: dispatcher"),
        ({"dead": "outbox"}, "its thread died: replies"),
        ({"dead": "leases"}, "its thread died: leases"),
        ({"silent_s": WEDGED_S + 1}, "the event loop has not turned for 30 s"),
        ({"silent_s": WEDGED_S + 1, "consuming": False}, None),
    ],
    ids=["well", "no dispatcher", "no replies", "no leases", "wedged loop", "waiting for its broker"],
)
def test_what_ails_a_worker(state: dict[str, Any], ailment: str | None) -> None:
    assert _runtime(**state).ailment() == ailment
