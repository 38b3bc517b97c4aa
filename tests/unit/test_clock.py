"""One time for all: a machine's own clock counts only while it is near Redis's."""

import time
from collections.abc import Iterator

import pytest

from protocol import clock


@pytest.fixture(autouse=True)
def believed() -> Iterator[None]:
    yield
    clock.learn(_server(0.0), time.time(), time.time())


def _server(ahead_s: float) -> tuple[int, int]:
    """What a server says that this machine is so far ahead of."""
    seconds = time.time() - ahead_s
    return int(seconds), int(seconds % 1 * 1e6)


@pytest.mark.parametrize("ahead_s", [300.0, -300.0, 2.0])
def test_a_clock_that_is_off_is_corrected(ahead_s: float) -> None:
    clock.learn(_server(ahead_s), time.time(), time.time())
    assert clock.now() == pytest.approx(time.time() - ahead_s, abs=0.5)
    assert clock.ahead_s() == pytest.approx(ahead_s, abs=0.5)


def test_a_clock_that_is_near_is_believed() -> None:
    clock.learn(_server(0.2), time.time(), time.time())
    assert clock.ahead_s() == 0


def test_a_slow_answer_is_no_news() -> None:
    now = time.time()
    clock.learn(_server(0.0), now - 20.0, now)
    assert clock.ahead_s() == 0


def test_a_clock_set_right_again_is_believed_again() -> None:
    clock.learn(_server(300.0), time.time(), time.time())
    clock.learn(_server(0.0), time.time(), time.time())
    assert clock.ahead_s() == 0
