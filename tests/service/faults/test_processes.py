"""Processes of Shoal's own that are killed or frozen under load."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.service.faults.system import System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict

pytestmark = pytest.mark.heavy
MakeSystem = Callable[..., System]


def test_killed_engines_lose_nothing(make_system: MakeSystem, requests: int) -> None:
    """S077: whatever an engine held when it was killed runs again, and nobody hears of it."""
    system = make_system()
    traffic = Traffic(system, requests).start()
    for share in (0.2, 0.4, 0.6, 0.8):
        traffic.wait_for(share)
        for worker in system.workers:
            for pid in system.engines(worker):
                os.kill(pid, signal.SIGKILL)
    traffic.finish()
    Verdict(traffic).check()
