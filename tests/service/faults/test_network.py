"""Networks that swallow or cut, and a clock that is minutes off, under load."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.service.faults.proxy import Proxy
from tests.service.faults.system import RedisServer, Server, System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
MakeSystem = Callable[..., System]

HOLE_S = 6.0


@dataclass(frozen=True, slots=True)
class Network:
    """A proxy before the Redis, and one before the broker if it is another server."""

    proxies: list[Proxy]
    settings: dict[str, Any]

    def each(self, act: Callable[[Proxy], None]) -> None:
        for proxy in self.proxies:
            act(proxy)


@pytest.fixture
def network(state: RedisServer, broker: Server) -> Iterator[Network]:
    before_state = Proxy(state.url)
    before_broker = before_state if broker is state else Proxy(broker.url)
    proxies = list(dict.fromkeys([before_state, before_broker]))
    yield Network(proxies, {"SHOAL_REDIS_URL": before_state.url, "SHOAL_BROKER_URL": before_broker.url})
    for proxy in proxies:
        proxy.close()


def test_connections_cut_in_mid_batch_lose_nothing(make_system: MakeSystem, network: Network, requests: int) -> None:
    """S076, S078: three times within three seconds, twice."""
    system = make_system(settings=network.settings)
    traffic = Traffic(system, requests).start()
    for share in (0.2, 0.6):
        traffic.wait_for(share)
        for _ in range(3):
            network.each(Proxy.cut)
            time.sleep(1.0)
    traffic.finish()
    Verdict(traffic).check()


def test_swallowed_connections_are_given_up(make_system: MakeSystem, network: Network, requests: int) -> None:
    """S076, S104: nothing says that the other end is gone; time limits find out, and all goes on over new ones."""
    system = make_system(settings=network.settings)
    traffic = Traffic(system, requests).start()
    traffic.wait_for(0.3)
    network.each(Proxy.swallow)
    time.sleep(HOLE_S)
    network.each(Proxy.open)
    traffic.finish()
    Verdict(traffic).check()


# libfaketime makes every time.sleep of CPython 3.11 fail, so the clock is turned where Python reads it.
TURNED = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {offset}
time.time_ns = lambda: _time_ns() + {offset} * 10**9
"""


@pytest.mark.parametrize("offset", [300, -300])
def test_a_clock_five_minutes_off_harms_nobody(
    make_system: MakeSystem, requests: int, tmp_path: Path, offset: int
) -> None:
    """Of one worker and of one gateway: both go by Redis's time."""
    turned = tmp_path / "turned"
    turned.mkdir()
    (turned / "sitecustomize.py").write_text(TURNED.format(offset=offset))
    wrong = {"PYTHONPATH": str(turned)}
    system = make_system()
    system.workers[0].kill()
    worker = system.start_worker(**wrong)
    system.gateways[0].stop()
    system.gateways[0].environment |= wrong
    system.gateways[0].start()
    traffic = Traffic(system, requests).start()
    traffic.finish()
    assert worker.log.read_text().count("clock is off") == 1
    verdict = Verdict(traffic)
    assert verdict.refused == 0, verdict.summary()
    verdict.check()
