"""Processes of Shoal's own that are killed or frozen under load."""

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.service.faults.system import System, alive
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict

pytestmark = pytest.mark.heavy
MakeSystem = Callable[..., System]

VISIBILITY_S = 2.0


def test_killed_engines_lose_nothing(make_system: MakeSystem, requests: int) -> None:
    """S077: whatever an engine held when it was killed runs again, and nobody hears of it."""
    system = make_system()
    traffic = Traffic(system, requests).start()
    killed: list[int] = []
    for share in (0.2, 0.4, 0.6, 0.8):
        traffic.wait_for(share)
        for worker in system.workers:
            killed += system.engines(worker)
            for pid in system.engines(worker):
                os.kill(pid, signal.SIGKILL)
    traffic.finish()
    assert len(killed) >= 4
    Verdict(traffic).check()


def test_workers_killed_at_random_moments_lose_nothing(make_system: MakeSystem, requests: int) -> None:
    """S077: each one's unfinished work runs on those that are left or come."""
    system = make_system(settings={"SHOAL_VISIBILITY_S": VISIBILITY_S})
    rolls = random.Random(11)
    traffic = Traffic(system, requests).start()
    for share in (0.1, 0.25, 0.4, 0.55, 0.7, 0.85):
        traffic.wait_for(share)
        time.sleep(rolls.uniform(0, 0.2))
        victim = rolls.choice(system.workers)
        engines = system.engines(victim)
        victim.kill()
        system.start_worker()
        assert alive(engines) == []
    traffic.finish()
    Verdict(traffic, may_give_up=True).check()


def test_killed_gateways_cut_off_only_their_own_callers(make_system: MakeSystem, requests: int) -> None:
    """A caller that was cut off sends again; what was accepted as a task ends all the same."""
    system = make_system()
    traffic = Traffic(system, requests).start()
    for share, victim in ((0.25, 0), (0.5, 1), (0.75, 0)):
        traffic.wait_for(share)
        system.gateways[victim].kill()
        system.gateways[victim].start()
    traffic.finish()
    Verdict(traffic, may_lose=True).check()


def test_a_frozen_worker_is_overtaken_and_does_no_harm_when_it_wakes(make_system: MakeSystem, requests: int) -> None:
    """S075: its leases run out, others do its work, and its late duplicates change no result."""
    system = make_system(settings={"SHOAL_VISIBILITY_S": VISIBILITY_S})
    traffic = Traffic(system, requests).start()
    traffic.wait_for(0.3)
    sleeper = system.workers[0]
    sleeper.signal(signal.SIGSTOP)
    time.sleep(3 * VISIBILITY_S)
    sleeper.signal(signal.SIGCONT)
    traffic.finish()
    assert sleeper.process.poll() is None
    Verdict(traffic).check()


def test_a_frozen_engine_is_replaced(make_system: MakeSystem, requests: int) -> None:
    """The watchdog ends what does not come back, and the batch runs in the next engine."""
    system = make_system(worker_settings={"SHOAL_HANG_S": 3})
    traffic = Traffic(system, requests).start()
    traffic.wait_for(0.3)
    frozen = [pid for worker in system.workers for pid in system.engines(worker)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    traffic.finish()
    Verdict(traffic).check()
    assert alive(frozen) == []
