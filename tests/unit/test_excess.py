"""What is given back of a queue of which far too much is held."""

from dataclasses import replace

from tests.unit.workers_doubles import delivery, fake_model
from workers.excess import excess
from workers.jobs import Job

MODEL = fake_model("org/a")


def job(cost: int, *, lane: str = "interactive", launched: bool = False, redelivered: bool = False) -> Job:
    made = delivery(MODEL, "text", lane=lane)
    made.request = replace(made.request, cost=cost)
    made.redelivered = redelivered
    return Job([made], arrival=0.0, expires=60.0, launched=1.0 if launched else None)


def test_what_exceeds_the_cost_is_given_back_the_newest_first() -> None:
    jobs = [job(4), job(4), job(4)]
    assert excess(jobs, "org/a", "interactive", 8) == jobs[2:]


def test_what_runs_counts_first_and_stays() -> None:
    waiting, huge = job(1), job(60_000, launched=True)
    assert excess([waiting, huge], "org/a", "interactive", 100) == [waiting]


def test_one_that_is_larger_than_all_that_may_be_held_stays() -> None:
    assert excess([job(60_000)], "org/a", "interactive", 100) == []


def test_other_queues_are_left_alone() -> None:
    jobs = [job(50), job(50, lane="bulk"), job(50, lane="bulk")]
    assert excess(jobs, "org/a", "interactive", 0) == []
    assert excess(jobs, "org/b", "interactive", 0) == []


def test_what_was_redelivered_is_not_passed_on_again() -> None:
    assert excess([job(50), job(50, redelivered=True)], "org/a", "interactive", 0) == []
