"""A part of a process that dies while the rest lives on, as if it were well."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from project.celery import worker_argv, worker_environment
from tests.service.faults.assassin import Assassin
from tests.service.faults.system import DEADLINE_S, System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict
from tests.service.harness import ROOT, Services, wait_until
from workers.heartbeat import EXIT_STATUS

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
MakeSystem = Callable[..., System]

THREADS = ("dispatcher", "replies", "wake", "leases", "heartbeat")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_worker_that_lost_a_thread_ends_and_another_goes_on(
    make_system: MakeSystem, requests: int, tmp_path: Path
) -> None:
    """S087: each thread in turn; nobody waits for what a dead one will never do."""
    assassin = Assassin(tmp_path / "assassin")
    system = make_system(settings={"SHOAL_VISIBILITY_S": 2}, worker_settings=assassin.environment)
    for thread in THREADS:
        victim = system.workers[0]
        killed = assassin.kill(victim.process.pid, thread)
        traffic = Traffic(system, requests // len(THREADS)).start()  # wakes those that wait
        assert victim.process.wait(20) == EXIT_STATUS, f"{thread}: {victim.log}"
        assert time.monotonic() - killed < 15
        assert f"its thread died: {thread}" in victim.log.read_text()
        system.start_worker(**assassin.environment)
        traffic.finish()
        Verdict(traffic).check()


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_gateway_whose_publisher_died_publishes_again(make_system: MakeSystem, requests: int, tmp_path: Path) -> None:
    """S087: calls on their way end at once in an error to retry on; none is told that there is a backlog."""
    assassin = Assassin(tmp_path / "assassin")
    system = make_system()
    gateway = system.gateways[0]
    gateway.stop()
    gateway.environment |= assassin.environment
    gateway.start()
    assert gateway.process is not None
    traffic = Traffic(system, requests).start()
    traffic.wait_for(0.3)
    assassin.kill(gateway.process.pid, "publisher")
    wait_until(lambda: "publisher failed" in gateway.log.read_text(), 10, "the publisher's end")
    traffic.finish()
    assert max(answer.took for answer in traffic.answers.values()) < DEADLINE_S / 2
    assert "429" not in Verdict(traffic).summary()
    Verdict(traffic).check()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_pool_that_would_not_do_is_refused_at_the_start(pool: str, services: Services, tmp_path: Path) -> None:
    """S086: forwards run in processes that are spawned, never in a pool of Celery's."""
    environment = worker_environment("w1") | {
        "SHOAL_REDIS_URL": services.redis_url,
        "SHOAL_BROKER_URL": services.broker_url,
        "SHOAL_DATA": str(tmp_path / "data"),
    }
    command = [sys.executable, "-W", "ignore", *worker_argv("w1"), "-P", pool]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "cannot run on the pool" in done.stderr
