"""Payloads that waited in the blob store are dropped with their answer: a text does not outlive its request."""

import time
import uuid

import msgpack
import pytest

from protocol import blobs, names
from protocol.messages import EMBED, Payload, celery_headers
from tests.service.harness import Fleet, Gateway, fake_model, wait_until

MODEL = fake_model("fake/echo")
PACKED = blobs.pack_payload(Payload([{"text": "a long text"}]))


@pytest.fixture(autouse=True)
def catalog(redis_gateway: Gateway) -> None:
    redis_gateway.serve(MODEL)


def send(gateway: Gateway, request_id: str, reference: str) -> None:
    headers = celery_headers(gateway.request(MODEL, id=request_id), "test")
    body = msgpack.packb([[], {"model": MODEL.spec.model, "blob": reference}, EMBED])
    gateway.publish(gateway.queue(MODEL), headers, body)


def test_an_answered_payload_leaves_redis(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    redis_fleet.start()
    request_id = str(uuid.uuid4())
    redis_gateway.redis.set(names.blob(request_id), PACKED)
    send(redis_gateway, request_id, f"redis:{request_id}")
    assert redis_gateway.collect([request_id])[request_id].error is None
    wait_until(lambda: not redis_gateway.redis.exists(names.blob(request_id)), what="the payload's end")


def test_an_answered_payload_leaves_the_disk(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    redis_fleet.start()
    folder = redis_fleet.folder / "data" / "blobs"
    request_id = str(uuid.uuid4())
    reference = blobs.reference(request_id, 9 << 20, time.time() + 60)
    blobs.write_file(folder, reference, PACKED)
    send(redis_gateway, request_id, reference)
    assert redis_gateway.collect([request_id])[request_id].error is None
    wait_until(lambda: not list(folder.iterdir()), what="the payload's end")


def test_a_payload_of_another_request_stays(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    redis_fleet.start()
    other = str(uuid.uuid4())
    redis_gateway.redis.set(names.blob(other), PACKED)
    request_id = str(uuid.uuid4())
    send(redis_gateway, request_id, f"redis:{other}")
    redis_gateway.collect([request_id])
    redis_gateway.collect([redis_gateway.send(MODEL)])
    assert redis_gateway.redis.exists(names.blob(other))


def test_a_payload_is_kept_until_its_answer_is_written(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    slow = fake_model("fake/slow", forward_s=0.5)
    redis_gateway.serve(slow)
    worker = redis_fleet.start()
    request_id = str(uuid.uuid4())
    redis_gateway.redis.set(names.blob(request_id), PACKED)
    headers = celery_headers(redis_gateway.request(slow, id=request_id), "test")
    body = msgpack.packb([[], {"model": slow.spec.model, "blob": f"redis:{request_id}"}, EMBED])
    redis_gateway.publish(redis_gateway.queue(slow), headers, body)
    wait_until(lambda: redis_gateway.beat(worker).get("flights") or redis_gateway.unacknowledged(), what="a start")
    worker.kill()
    assert redis_gateway.redis.exists(names.blob(request_id))
    redis_fleet.start(SHOAL_VISIBILITY_S=1)
    assert redis_gateway.collect([request_id])[request_id].error is None
