"""How long a request would wait, and what the last messages of a queue cost: pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.fleet import Fleet, view
from inference.forecast import Forecast, ahead_in_lane, forecasts, retry_after
from inference.published import Counts, History
from protocol.names import queue
from protocol.spec import ModelSpec

A = ModelSpec("org/a", "fake", ("encode",), load={"n": 1})
B = ModelSpec("org/b", "fake", ("encode",), load={"n": 2})


def state(spec: ModelSpec, rate: float | None, **fields: object) -> dict[str, object]:
    return {"model": spec.model, "digest": spec.digest, "state": "loaded", "rate": rate, **fields}


def fleet(*workers: list[dict[str, object]], pool: str = "default", draining: bool = False) -> Fleet:
    beats = [
        {"id": f"w{number}", "pool": pool, "draining": draining, "models": models}
        for number, models in enumerate(workers)
    ]
    return view(beats, now=0.0)


def waiting(spec: ModelSpec, interactive: float = 0.0, bulk: float = 0.0) -> dict[str, float]:
    costs = {"interactive": interactive, "bulk": bulk}
    return {queue(spec.pool, spec.model, lane): cost for lane, cost in costs.items()}


def wait_s(found: dict[tuple[str, str], Forecast], spec: ModelSpec, lane: str = "interactive") -> float:
    forecast = found[spec.model, lane]
    return forecast.wait_s(forecast.ahead)


def test_the_wait_is_what_waits_over_the_rate_of_those_who_serve_it() -> None:
    found = forecasts([A], fleet([state(A, 100)], [state(A, 300)]), waiting(A, 800))
    assert wait_s(found, A) == pytest.approx(2.0)


def test_an_answer_takes_its_batch_which_it_is_not_alone_in() -> None:
    found = forecasts([A], fleet([state(A, 100, batch_s=0.5)]), waiting(A, 100))
    assert found[A.model, "interactive"].answer_s(100, cost=1) == pytest.approx(1.5)
    assert found[A.model, "interactive"].answer_s(100, cost=200) == pytest.approx(3.0)


def test_bulk_makes_way_and_interactive_does_not() -> None:
    found = forecasts([A], fleet([state(A, 100)]), waiting(A, 100, bulk=900))
    assert wait_s(found, A) == pytest.approx(1.0)
    assert wait_s(found, A, "bulk") == pytest.approx(10.0)


def test_other_models_of_the_same_worker_are_waited_for() -> None:
    found = forecasts([A, B], fleet([state(A, 100), state(B, 10)]), {**waiting(A, 100), **waiting(B, 30)})
    assert wait_s(found, A) == wait_s(found, B) == pytest.approx(4.0)


def test_the_least_busy_of_its_workers_counts() -> None:
    found = forecasts([A, B], fleet([state(A, 100), state(B, 10)], [state(A, 100)]), waiting(B, 30))
    assert wait_s(found, A) == 0.0
    assert wait_s(found, B) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"state": "loading", "progress": 0.75}, 2.0),
        ({"state": "absent", "progress": 1.0}, 8.0),
        ({"state": "loaded", "progress": 1.0}, 0.0),
    ],
)
def test_a_cold_model_adds_what_is_left_of_its_load(fields: dict[str, object], seconds: float) -> None:
    found = forecasts([A], fleet([state(A, 100, load_s=8.0, **fields)]), {})
    assert wait_s(found, A) == pytest.approx(seconds)


def test_a_worker_that_would_have_to_load_does_not_count_beside_one_that_has_it() -> None:
    found = forecasts([A], fleet([state(A, 100)], [state(A, 900, state="absent", load_s=5.0)]), waiting(A, 100))
    assert wait_s(found, A) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "seen",
    [
        fleet([state(A, None)]),
        fleet([]),
        fleet([state(A, 100)], pool="other"),
        fleet([state(A, 100)], draining=True),
        fleet([state(B, 100)]),
    ],
)
def test_an_unknown_pace_is_no_forecast(seen: Fleet) -> None:
    assert forecasts([A], seen, waiting(A, 100)) == {}


def test_ahead_is_what_is_at_least_as_urgent() -> None:
    costs = waiting(A, 3, bulk=4)
    assert [ahead_in_lane(costs, A, lane) for lane in ("interactive", "bulk")] == [3, 7]


@pytest.mark.parametrize(("over", "seconds"), [(0.0, 0.1), (0.01, 0.1), (1.23, 1.3), (7.0, 7.0), (4000.0, 60.0)])
def test_retry_after_is_in_tenths_within_bounds(over: float, seconds: float) -> None:
    assert retry_after(over) == seconds


def test_those_that_wait_are_the_last_ones_published() -> None:
    history = History()
    history.note(100.0, Counts(10, 10, 100), waiting=10)
    history.note(101.0, Counts(14, 54, 4100), waiting=4)
    assert history.last(4) == Counts(4, 44, 4000)
    assert history.oldest == 100.0


def test_what_waits_is_no_older_than_the_last_look_that_saw_none_of_it() -> None:
    history = History()
    history.note(100.0, Counts(6, 6, 18), waiting=0)
    history.note(107.0, Counts(6, 6, 18), waiting=0)
    history.note(108.0, Counts(26, 26, 78), waiting=20)
    assert history.oldest == 107.0


def test_of_what_was_there_before_the_first_look_the_average_is_known_and_the_age_is_not() -> None:
    history = History()
    history.note(100.0, Counts(10, 20, 1000), waiting=5)
    assert history.last(5) == Counts(5, 10, 500)
    assert history.oldest is None


def test_messages_that_nobody_counted_count_the_least() -> None:
    history = History()
    history.note(100.0, Counts(), waiting=7)
    assert history.last(7) == Counts(7, 7, 7)


def test_counts_that_redis_lost_begin_anew() -> None:
    history = History()
    history.note(100.0, Counts(1000, 1000, 50_000), waiting=1000)
    history.note(101.0, Counts(2, 2, 20), waiting=2)
    assert history.last(2) == Counts(2, 2, 20)


@given(
    looks=st.lists(st.tuples(st.lists(st.integers(1, 1000), max_size=20), st.integers(0, 20)), min_size=1, max_size=60)
)
def test_the_estimate_errs_by_the_messages_of_one_look_at_most(looks: list[tuple[list[int], int]]) -> None:
    history, total, costs = History(), Counts(), list[int]()
    for turn, (coming, going) in enumerate(looks):
        costs += coming
        del costs[:going]
        total += Counts(len(coming), len(coming), sum(coming))
        history.note(float(turn), total, len(costs))
        estimated = history.last(len(costs))
        assert (estimated.messages, estimated.items) == (len(costs), len(costs))
        assert abs(estimated.cost - sum(costs)) <= 20 * 1000


def test_points_that_no_message_needs_are_forgotten() -> None:
    history = History()
    for turn in range(5000):
        history.note(float(turn), Counts(turn, turn, turn), waiting=3)
    assert len(history) <= 5
