"""Requests that were given up on are kept, and can be sent again or dropped. The same on each broker."""

from typing import Any

import orjson
import pytest

from inference.dead_letters import DeadLetters
from protocol import dead_letters, names
from protocol.dead_letters import DeadLetter
from protocol.messages import HEADER, celery_headers
from tests.service.harness import Fleet, Gateway, Services, fake_model, wait_until


@pytest.fixture
def letters(services: Services, gateway: Gateway) -> DeadLetters:
    return DeadLetters(gateway.redis, services.broker_url, 60)


def stored(gateway: Gateway, request_id: str) -> Any:
    return orjson.loads(gateway.redis.get(names.task_result(request_id)) or b"null")


def test_a_poison_item_is_kept_and_sent_again_when_its_model_is_mended(
    fleet: Fleet, gateway: Gateway, letters: DeadLetters
) -> None:
    """Its caller, who once waited, reads the result as a task; a replay that is repeated changes nothing."""
    gateway.serve(fake_model("fake/mended"))
    fleet.start()
    dead = gateway.send(fake_model("fake/mended"), "boom", key="caller")
    assert gateway.collect([dead])[dead].error is not None

    (letter,) = letters.newest()
    assert (letter.id, letter.code, letter.model, letter.key) == (dead, "INFERENCE_ERROR", "fake/mended", "caller")
    assert (letter.attempts, letter.worker, letter.is_replayable) == (1, "w1", True)
    assert letters.payload(dead)["items"] == [{"text": "boom"}]

    gateway.serve(fake_model("fake/mended", immune=True), declare=False)
    assert letters.replay([dead]) == {dead: ""}
    result = wait_until(lambda: stored(gateway, dead), what="a result of the mended model")
    assert result["status"] == "SUCCESS"
    assert letters.count() == 0
    assert letters.replay([dead]) == {dead: "it is no dead letter, or no longer"}
    assert stored(gateway, dead) == result
    assert gateway.redis.hget(names.task(dead), "key") == b"caller"


def test_a_task_that_dies_again_is_one_dead_letter_with_one_result(
    fleet: Fleet, gateway: Gateway, letters: DeadLetters
) -> None:
    model = fake_model("fake/hopeless")
    gateway.serve(model)
    fleet.start()
    dead = gateway.send(model, "boom", reply=None, store=True)
    first = wait_until(letters.newest, what="a dead letter")[0]

    assert letters.replay([dead]) == {dead: ""}

    second = wait_until(
        lambda: [letter for letter in letters.newest() if letter.died != first.died], what="its second death"
    )
    assert [letter.id for letter in second] == [dead]
    assert stored(gateway, dead)["status"] == "FAILURE"
    assert letters.drop([dead]) == 1
    assert letters.count() == 0
    assert gateway.redis.get(names.DEAD_BYTES) == b"0"


@pytest.mark.parametrize("answerable", [True, False])
def test_a_message_that_cannot_be_read_is_kept_without_its_body(
    fleet: Fleet, gateway: Gateway, letters: DeadLetters, answerable: bool
) -> None:
    model = fake_model(f"fake/garbled-{answerable}".lower())
    gateway.serve(model)
    fleet.start()
    headers = celery_headers(gateway.request(model), "test")
    headers[HEADER] |= {"surprise": 1}
    headers["id"] = headers["id"] if answerable else None
    gateway.publish(gateway.queue(model), headers, b"my secret")

    letter = wait_until(letters.newest, what="a dead letter")[0]

    assert letter.code == "INVALID_INPUT"
    assert not letter.is_replayable
    assert letters.replay([letter.id]) == {letter.id: "its message was not kept, so it cannot be sent again"}
    kept = [*gateway.redis.hvals(names.DEAD_FACTS), *gateway.redis.hvals(names.DEAD_MESSAGES)]
    assert "my secret" not in str(kept)


def test_a_callers_mistake_is_no_dead_letter(fleet: Fleet, gateway: Gateway, letters: DeadLetters) -> None:
    model = fake_model("fake/mistaken")
    gateway.serve(model)
    fleet.start()
    headers = celery_headers(gateway.request(model, id="mistake"), "test")
    gateway.publish(gateway.queue(model), headers, b"\x93\x90\x81\xa5items\x01\x80")
    assert gateway.collect(["mistake"])["mistake"].error is not None

    assert letters.count() == 0


def keep(gateway: Gateway, letter_id: str, message: bytes, died: float = 1e9) -> None:
    letter = DeadLetter(
        letter_id, "encode", "fake/x", "bulk", None, 1, 1, died, died, 1, "WORKER_LOST", "lost", "w1", "queue"
    )
    gateway.redis.eval(dead_letters.KEEP, *dead_letters.keep_arguments(letter, message))


def test_the_oldest_leave_when_there_are_too_many(redis_gateway: Gateway) -> None:
    for number in range(dead_letters.MOST + 3):
        keep(redis_gateway, f"letter-{number}", b"x", died=1e9 + number)

    kept = DeadLetters(redis_gateway.redis, "", 60).newest(2 * dead_letters.MOST)

    assert [kept[0].id, kept[-1].id] == [f"letter-{dead_letters.MOST + 2}", "letter-3"]
    assert len(kept) == dead_letters.MOST


def test_the_oldest_leave_when_they_are_too_large_together(redis_gateway: Gateway) -> None:
    size = dead_letters.LETTER_BYTES - 4096
    for number in range(9):
        keep(redis_gateway, f"letter-{number}", b"x" * size, died=1e9 + number)

    kept = DeadLetters(redis_gateway.redis, "", 60).newest()

    assert len(kept) == dead_letters.MOST_BYTES // size
    assert int(redis_gateway.redis.get(names.DEAD_BYTES) or 0) <= dead_letters.MOST_BYTES


def test_a_message_too_large_to_keep_leaves_its_facts(redis_gateway: Gateway) -> None:
    keep(redis_gateway, "large", b"x" * (dead_letters.LETTER_BYTES + 1))

    (letter,) = DeadLetters(redis_gateway.redis, "", 60).newest()

    assert not letter.is_replayable


def test_old_ones_leave_when_another_comes(redis_gateway: Gateway) -> None:
    keep(redis_gateway, "old", b"x", died=1e9)
    keep(redis_gateway, "new", b"x", died=1e9 + dead_letters.KEPT_S + 1)

    assert [letter.id for letter in DeadLetters(redis_gateway.redis, "", 60).newest()] == ["new"]


def test_a_payload_put_aside_is_kept_with_its_letter_and_dropped_with_it(redis_gateway: Gateway) -> None:
    redis_gateway.redis.set(names.blob("aside"), b"p" * 1000, ex=5)
    keep(redis_gateway, "aside", b"x")
    assert redis_gateway.redis.ttl(names.blob("aside")) > 5

    DeadLetters(redis_gateway.redis, "", 60).drop(["aside"])

    assert not redis_gateway.redis.exists(names.blob("aside"))


def test_a_replay_that_the_broker_does_not_take_keeps_letter_and_failure(redis_gateway: Gateway) -> None:
    model = fake_model("fake/x")
    redis_gateway.serve(model)
    keep(redis_gateway, "kept", b"x")
    failure = b'{"status":"FAILURE"}'
    redis_gateway.redis.set(names.task_result("kept"), failure)
    letters = DeadLetters(redis_gateway.redis, "redis://127.0.0.1:1/0", 60)

    with pytest.raises(Exception, match="the dead letter is kept"):
        letters.replay(["kept"])

    assert letters.count() == 1
    assert redis_gateway.redis.get(names.task_result("kept")) == failure
    assert not redis_gateway.redis.exists(names.replaying("kept"))


def test_a_replay_never_takes_a_result_away(redis_gateway: Gateway) -> None:
    redis_gateway.serve(fake_model("fake/x"))
    keep(redis_gateway, "done", b"x")
    success = b'{"status":"SUCCESS","result":1}'
    redis_gateway.redis.set(names.task_result("done"), success)
    letters = DeadLetters(redis_gateway.redis, redis_gateway.services.broker_url, 60)

    assert letters.replay(["done"]) == {"done": "it has a result already"}

    assert redis_gateway.redis.get(names.task_result("done")) == success
    assert letters.count() == 0
