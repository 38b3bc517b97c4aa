"""Broker and Redis that are killed and come back under load."""

import time
from collections.abc import Callable

import pytest

from tests.service.faults.system import RedisServer, Server, System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict

pytestmark = pytest.mark.heavy
MakeSystem = Callable[..., System]


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
