"""Messages that no gateway wrote: one worker per broker lives through them all."""

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.messages import HEADER, celery_headers
from tests.service.harness import Fleet, Gateway, Services, Worker, fake_model, wait_until

MODEL = fake_model("fake/poisoned")


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def services(request: pytest.FixtureRequest, valkey: str) -> Services:
    redis_url = valkey.replace("/0", "/7")  # not emptied between the tests of this module
    broker = redis_url if request.param == "redis" else request.getfixturevalue("rabbitmq_url")
    return Services(broker, redis_url)


@pytest.fixture(scope="module")
def gateway(services: Services) -> Iterator[Gateway]:
    gateway = Gateway(services)
    gateway.redis.flushdb()
    gateway.serve(MODEL)
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def worker(services: Services, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    fleet = Fleet(services, tmp_path_factory.mktemp("poison"))
    yield fleet.start()
    fleet.end()


BROKEN: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "body is no msgpack": ({}, b"\xc1\xc1\xc1", "body cannot be read"),
    "body is empty": ({}, b"", "body cannot be read"),
    "body holds no arguments": ({}, b"\x01", "body cannot be read"),
    "arguments are positional": ({}, b"\x92\x91\x01\x80", "must be keywords"),
    "items are no list": ({}, b"\x93\x90\x81\xa5items\x01\x80", "items must be a list"),
    "blob is a path": ({}, b"\x93\x90\x81\xa4blob\xab/etc/passwd\x80", "not a reference"),
    "header has another key": ({"surprise": 1}, b"", "not of this version"),
    "header has a wrong type": ({"cost": "much"}, b"", "cost is of the wrong type"),
    "header has another primitive": ({"primitive": "score"}, b"", "primitive is not the task's"),
    "header has no such lane": ({"lane": "fast"}, b"", "lane must be one of"),
}


@pytest.mark.parametrize("shape", BROKEN)
def test_a_poison_message_gets_one_typed_answer(worker: Worker, gateway: Gateway, shape: str) -> None:
    changes, body, said = BROKEN[shape]
    headers = celery_headers(gateway.request(MODEL, id=shape), "test")
    headers[HEADER] |= changes
    gateway.publish(gateway.queue(MODEL), headers, body)
    reply = gateway.collect([shape])[shape]
    assert reply.error is not None
    assert reply.error["code"] == "INVALID_INPUT"
    assert said in reply.error["message"]
    gateway.collect([gateway.send(MODEL)])
    assert gateway.mail() == []
    assert worker.process.poll() is None


UNANSWERABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no headers": ({}, "application/x-msgpack"),
    "no id": ({"task": "shoal.encode", "shoal": {}}, "application/x-msgpack"),
    "an id that is no string": ({"task": "shoal.encode", "id": 7, "shoal": {}}, "application/x-msgpack"),
    "a header that is no map": ({"task": "shoal.encode", "id": "x", "shoal": 7}, "application/x-msgpack"),
    "a pickle": ({"task": "shoal.encode", "id": "x"}, "application/x-python-serialize"),
    "unknown compression": ({"task": "shoal.encode", "id": "x", "compression": "nope"}, "application/x-msgpack"),
}


@pytest.mark.parametrize("shape", UNANSWERABLE)
def test_a_message_that_makes_no_sense_is_gone_and_the_next_one_served(
    worker: Worker, gateway: Gateway, shape: str
) -> None:
    headers, content_type = UNANSWERABLE[shape]
    gateway.publish(gateway.queue(MODEL), headers, b"\x90", content_type=content_type)
    gateway.collect([gateway.send(MODEL)])
    wait_until(lambda: gateway.beat(worker).get("queues") == {}, what="an empty beat")


def test_no_text_of_a_message_is_logged(worker: Worker, gateway: Gateway) -> None:
    headers = celery_headers(gateway.request(MODEL, id="secretive"), "test") | {"argsrepr": "my secret"}
    gateway.publish(gateway.queue(MODEL), headers, b"\x93\x91\xa9my secret\x80\x80")
    gateway.collect(["secretive"])
    assert "my secret" not in worker.log.read_text()
