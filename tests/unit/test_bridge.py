import threading
from collections import deque
from collections.abc import Callable

import pytest

from workers.bridge import Bridge


class Hub:
    """Keeps what it was asked to call, as a Hub that has not turned yet."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()


def broken() -> None:
    raise ValueError


def disconnected() -> None:
    raise ConnectionError


def attached() -> tuple[Bridge, Hub]:
    bridge, hub = Bridge(), Hub()
    bridge.attach(hub.call_soon, (ConnectionError,))
    hub.turn()
    return bridge, hub


def test_jobs_run_in_order() -> None:
    bridge, hub = attached()
    ran: list[int] = []
    for number in range(5):
        bridge.put(lambda number=number: ran.append(number))  # type: ignore[misc]
    hub.turn()
    assert ran == [0, 1, 2, 3, 4]


def test_the_hub_is_asked_once_for_many_jobs() -> None:
    bridge, hub = attached()
    for _ in range(5):
        bridge.put(lambda: None)
    assert len(hub.soon) == 1


def test_jobs_wait_for_the_first_connection() -> None:
    bridge, hub = Bridge(), Hub()
    ran: list[int] = []
    bridge.put(lambda: ran.append(1))
    bridge.attach(hub.call_soon, ())
    hub.turn()
    assert ran == [1]


def test_a_broken_job_does_not_stop_the_next() -> None:
    bridge, hub = attached()
    ran: list[int] = []
    bridge.put(broken)
    bridge.put(lambda: ran.append(1))
    hub.turn()
    assert ran == [1]


def test_a_lost_connection_is_the_consumers_business_and_the_rest_runs_after() -> None:
    bridge, hub = attached()
    ran: list[int] = []
    bridge.put(disconnected)
    bridge.put(lambda: ran.append(1))
    with pytest.raises(ConnectionError):
        hub.turn()
    hub.turn()
    assert ran == [1]


def test_no_job_of_many_threads_is_left() -> None:
    bridge, hub = attached()
    ran: list[int] = []

    def put_many() -> None:
        for _ in range(500):
            bridge.put(lambda: ran.append(1))

    threads = [threading.Thread(target=put_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        hub.turn()
    hub.turn()
    assert len(ran) == 2000


def test_a_job_put_aside_wakes_nobody_and_keeps_its_place() -> None:
    bridge, hub = attached()
    ran: list[int] = []
    bridge.put_aside(lambda: ran.append(1))
    assert len(hub.soon) == 0
    bridge.put(lambda: ran.append(2))
    hub.turn()
    assert ran == [1, 2]
