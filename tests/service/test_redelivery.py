"""Which of the redelivered requests run when, over workers that vanish."""

import pytest
import redis

from protocol import names
from protocol.errors import WorkerLost
from protocol.messages import Payload, Request
from workers.bridge import Bridge
from workers.custody import Custody
from workers.deliveries import Delivery
from workers.receipts import Receipt
from workers.redelivery import AT_ONCE, Redelivery


def _delivery(request_id: str, digest: str = "d") -> Delivery:
    request = Request(request_id, "encode", "fake/x", digest, cost=1, count=1, deadline=0, published=0)
    receipt = Receipt(None, request, None, "queue", lambda cancelled: None, redelivered=True)
    return Delivery(request, lambda: Payload([]), receipt=receipt, redelivered=True)


class OneWorkersLife:
    """From its start to its end; the counts in Redis go on."""

    def __init__(self, state: "redis.Redis") -> None:
        self.running: list[str] = []
        self.refused: set[str] = set()
        self.redelivery = Redelivery(
            state, Bridge(), Custody(), lambda delivery: self.running.append(delivery.request.id), ttl_s=60
        )

    def admit(self, *ids: str) -> None:
        for request_id in ids:
            try:
                self.redelivery.admit(_delivery(request_id))
            except WorkerLost:
                self.refused.add(request_id)

    def end(self, request_id: str) -> None:
        self.running.remove(request_id)
        self.redelivery.ended(request_id)


@pytest.fixture
def state(redis_url: str) -> "redis.Redis":
    return redis.Redis.from_url(redis_url)


def test_only_a_few_run_at_once(state: "redis.Redis") -> None:
    life = OneWorkersLife(state)
    life.admit(*map(str, range(20)))
    assert life.running == [str(number) for number in range(AT_ONCE)]


def test_the_next_starts_when_one_ends(state: "redis.Redis") -> None:
    life = OneWorkersLife(state)
    life.admit(*map(str, range(20)))
    life.end("3")
    assert life.running[-1] == str(AT_ONCE)


def test_models_do_not_wait_for_each_other(state: "redis.Redis") -> None:
    life = OneWorkersLife(state)
    life.admit(*map(str, range(AT_ONCE)))
    life.redelivery.admit(_delivery("other", digest="another model"))
    assert "other" in life.running


def test_suspects_run_alone_and_first(state: "redis.Redis") -> None:
    OneWorkersLife(state).admit("a", "b")
    life = OneWorkersLife(state)
    life.admit("a", "b", "innocent")
    assert life.running == ["a"]
    life.end("a")
    assert life.running == ["b"]
    life.end("b")
    assert life.running == ["innocent"]


def test_the_culprit_is_refused_and_no_neighbour_is(state: "redis.Redis") -> None:
    left, refused, lives = {f"r{number}" for number in range(64)}, set(), 0
    while left:
        lives += 1
        life = OneWorkersLife(state)
        life.admit(*sorted(left))
        refused |= life.refused
        left -= life.refused
        while life.running and "r7" not in life.running:
            answered = life.running[0]
            left.discard(answered)
            life.end(answered)
    assert refused == {"r7"}
    assert lives <= 4


def test_a_stored_result_makes_a_run_needless(state: "redis.Redis") -> None:
    state.set(names.task_result("done"), "{}")
    life = OneWorkersLife(state)
    delivery = _delivery("done")
    stored = Request(**{field: getattr(delivery.request, field) for field in Request.__slots__} | {"store": True})
    life.redelivery.admit(Delivery(stored, delivery.load, receipt=delivery.receipt, redelivered=True))
    assert life.running == []
