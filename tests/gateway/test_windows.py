"""How much of one key's work a gateway lets into one queue, and in which order the rest follows."""

import asyncio
from contextlib import ExitStack

import pytest

from inference.calls import Accepted, Call
from inference.forecast import Forecast
from inference.windows import UNKNOWN_COST, Windows, window_cost
from protocol.messages import Payload, Request
from tests.gateway.conftest import FAKE

FORECAST = Forecast(rate=1000.0, batch_s=0.1)  # a window of 300


def accepted(cost: int = 100, key: str | None = "a", lane: str = "interactive") -> Accepted:
    request = Request("id", "encode", FAKE.model, FAKE.digest, cost, 1, 2e9, 1e9, lane=lane, key=key)
    return Accepted(Call("id", "encode", FAKE.model, [{"text": "x"}]), FAKE, request, Payload([]))


def windows(forecast: Forecast | None = FORECAST) -> Windows:
    return Windows(lambda model, lane: forecast)


async def test_a_key_has_one_window_of_work_in_a_queue_and_the_rest_follows_in_order() -> None:
    held = windows()
    places = [held.place(accepted()) for _ in range(6)]
    turns = [place.__enter__() for place in places]
    assert [turn.done() for turn in turns] == [True] * 3 + [False] * 3
    places[1].__exit__(None, None, None)
    assert [turn.done() for turn in turns] == [True] * 4 + [False] * 2
    for place in places[:1] + places[2:]:
        place.__exit__(None, None, None)
    assert len(held) == 0


async def test_another_key_another_lane_and_another_moment_are_not_held_up() -> None:
    held = windows()
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(held.place(accepted()))
        assert stack.enter_context(held.place(accepted(key="b"))).done()
        assert stack.enter_context(held.place(accepted(key=None))).done()
        assert stack.enter_context(held.place(accepted(lane="bulk"))).done()
        assert held.held(accepted()) == 700
        assert held.held(accepted(key="b")) == 0
    assert len(held) == 0


async def test_a_request_larger_than_the_window_goes_alone() -> None:
    held = windows()
    with held.place(accepted(5000)) as first:
        assert first.done()
        with held.place(accepted(1)) as second:
            assert not second.done()
    with held.place(accepted(5000)) as third:
        assert third.done()


async def test_a_caller_who_leaves_makes_no_gap() -> None:
    held = windows()
    with ExitStack() as stack:
        first = held.place(accepted(300))
        first.__enter__()
        with held.place(accepted(300)) as gone:
            assert not gone.done()
        last = stack.enter_context(held.place(accepted(300)))
        assert held.held(accepted()) == 300
        first.__exit__(None, None, None)
        assert last.done()
    assert len(held) == 0


@pytest.mark.parametrize(
    ("forecast", "cost"),
    [
        (None, UNKNOWN_COST),
        (Forecast(1000.0, batch_s=0.25), 750.0),
        (Forecast(1000.0, batch_s=0.001), 100.0),
        (Forecast(1000.0, batch_s=0.1, load_s=2.0), 2300.0),
    ],
)
def test_a_window_is_what_keeps_the_workers_busy(forecast: Forecast | None, cost: float) -> None:
    assert window_cost(forecast) == cost


async def test_all_of_a_flood_comes_through() -> None:
    held, done = windows(), 0

    async def call() -> None:
        nonlocal done
        with held.place(accepted()) as turn:
            await turn
            await asyncio.sleep(0)
        done += 1

    await asyncio.gather(*(call() for _ in range(500)))
    assert done == 500 and len(held) == 0
