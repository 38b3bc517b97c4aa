"""What a worker learns of the messages it takes."""

from dataclasses import replace
from typing import Any

from tests.unit.workers_doubles import delivery, fake_model
from workers.custody import Custody
from workers.receipts import Receipt

MODEL = fake_model("org/a")


def take(custody: Custody, cost: int, count: int = 1) -> None:
    request = replace(delivery(MODEL, "text").request, cost=cost, count=count)
    message: Any = None
    custody._learn(Receipt(message, request, task=None, queue="q", cancel_request=lambda request_id: None))


def test_nothing_is_known_of_a_queue_that_was_never_taken_from() -> None:
    assert (Custody().mean_cost("q"), Custody().item_cost("q")) == (None, None)


def test_the_first_message_stands_for_all() -> None:
    custody = Custody()
    take(custody, 40, count=4)
    assert (custody.mean_cost("q"), custody.item_cost("q")) == (40.0, 10.0)


def test_the_mean_follows_what_is_taken_of_late() -> None:
    custody = Custody()
    take(custody, 10)
    for _ in range(100):
        take(custody, 1000)
    mean = custody.mean_cost("q")
    assert mean is not None and 950 < mean < 1000
