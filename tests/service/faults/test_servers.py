"""Broker and Redis that are killed and come back under load."""

import time
from collections.abc import Callable

import httpx
import pytest

from tests.service.faults.system import RedisServer, Server, System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict
from tests.service.harness import wait_until

pytestmark = pytest.mark.heavy
MakeSystem = Callable[..., System]

BACK_S = 10.0  # five where nothing else runs


def _kill_twice(server: Server, system: System, requests: int) -> None:
    """The workers are the ones from before."""
    traffic = Traffic(system, requests).start()
    workers = system.workers
    for share in (0.3, 0.6):
        traffic.wait_for(share)
        server.kill()
        time.sleep(1.0)
        server.start()
    traffic.finish()
    assert system.workers == workers
    Verdict(traffic).check()


def test_a_killed_broker_loses_no_task(make_system: MakeSystem, broker: Server, requests: int) -> None:
    """Callers are refused while it is away; what was accepted is on its disk."""
    _kill_twice(broker, make_system(), requests)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_killed_redis_beside_rabbitmq_loses_no_task(
    state: RedisServer, make_system: MakeSystem, requests: int
) -> None:
    """Mailboxes and results go and come; waiting callers hear of it at once."""
    _kill_twice(state, make_system(), requests)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_broker_restarted_again_and_again_is_served_at_once(
    make_system: MakeSystem, broker: Server, requests: int
) -> None:
    """Twenty times in a long run; the workers are the ones from before and never fall silent."""
    system = make_system()
    workers, times = system.workers, 20 if requests >= 10_000 else 3
    traffic = Traffic(system, requests).start()
    for number in range(times):
        traffic.wait_for(0.9 * number / times)
        broker.kill()
        broker.start()
        started = time.monotonic()
        wait_until(lambda: _answers(system), BACK_S, f"an answer after restart {number + 1}")
        assert time.monotonic() - started < BACK_S
    traffic.finish()
    assert system.workers == workers
    Verdict(traffic).check()


def _answers(system: System) -> bool:
    url = f"{system.gateways[0].url}/v1/encode/{system.model.spec.model}"
    return httpx.post(url, json={"items": ["again"]}, timeout=BACK_S).status_code == 200
