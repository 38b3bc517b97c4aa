"""The message on the broker is the one Celery's own client would send, and one header more."""

import base64
import json
import time
import uuid
from typing import Any

import msgpack
import redis
from celery import Celery
from kombu.connection import Connection

from inference.broker import connect
from inference.dispatch import _body
from inference.publisher import Publication
from protocol import names
from protocol.messages import HEADER, Request

ARGUMENTS: dict[str, Any] = {"model": "acme/fake", "items": [{"text": "river stones"}], "options": {"normalize": True}}


def request(store: bool) -> Request:
    now = time.time()
    return Request(
        str(uuid.uuid4()), "encode", "acme/fake", "digest", 5, 1, now + 60, now, reply="shoal:mail:x", store=store
    )


def publication(asked: Request, queue: str) -> Publication:
    return Publication(asked, queue, "default", _body(ARGUMENTS), None)  # type: ignore[arg-type]


def plain_celery(broker_url: str, asked: Request, queue: str) -> None:
    """What `apply_async` of the same task sends with the same settings."""
    app = Celery("plain", broker=broker_url)
    app.conf.update(task_serializer="msgpack", accept_content=["msgpack", "json"])

    @app.task(name="shoal.encode")  # type: ignore[untyped-decorator]
    def encode(**arguments: Any) -> None: ...

    encode.apply_async(
        kwargs=ARGUMENTS,
        queue=queue,
        task_id=asked.id,
        ignore_result=not asked.store,
        delivery_mode=2 if asked.store else 1,
    )
    app.close()


def taken(client: "redis.Redis", queue: str) -> tuple[dict[str, Any], Any]:
    """The newest message of a queue: its envelope without what is random, and its body."""
    envelope = json.loads(client.lpop(queue))  # type: ignore[arg-type]
    body = msgpack.unpackb(base64.b64decode(envelope.pop("body")))
    without_own_words(envelope["headers"])
    for name in ("delivery_tag", "reply_to"):
        assert uuid.UUID(envelope["properties"].pop(name))
    return envelope, body


def without_own_words(headers: dict[str, Any]) -> dict[str, Any]:
    """Who sent it, and how the arguments read in a log: Celery would write the caller's text there."""
    for name in ("origin", "argsrepr", "kwargsrepr"):
        assert isinstance(headers.pop(name), str)
    return headers


def test_redis_message_equals_apply_async(redis_url: str) -> None:
    for store in (True, False):
        asked = request(store)
        with redis.Redis.from_url(redis_url) as client, connect(redis_url) as link:
            plain_celery(redis_url, asked, "shoal.test")
            theirs, their_body = taken(client, "shoal.test")
            link.send([publication(asked, "shoal.test")])
            ours, our_body = taken(client, "shoal.test")
        header = ours["headers"].pop(HEADER)
        assert ours == theirs
        assert our_body == their_body
        assert Request.from_header(asked.id, header) == asked


def arrived(channel: Any) -> Any:
    """The next message of the intake queue; without confirms it may take a moment."""
    ends = time.monotonic() + 5
    while (message := channel.basic_get(names.INTAKE_QUEUE, no_ack=True)) is None:
        assert time.monotonic() < ends
        time.sleep(0.02)
    return message


def test_rabbitmq_message_equals_apply_async(rabbitmq_url: str) -> None:
    asked = request(store=True)
    with connect(rabbitmq_url) as link, Connection(rabbitmq_url) as connection:
        link.send([publication(asked, names.INTAKE_QUEUE)])
        channel = connection.channel()
        ours = arrived(channel)
        plain_celery(rabbitmq_url, asked, names.INTAKE_QUEUE)
        theirs = arrived(channel)
    header = ours.headers.pop(HEADER)
    assert without_own_words(ours.headers) == without_own_words(theirs.headers)
    assert {**ours.properties, "reply_to": ""} == {**theirs.properties, "reply_to": ""}
    assert msgpack.unpackb(ours.body) == msgpack.unpackb(theirs.body)
    assert Request.from_header(asked.id, header) == asked


def test_header_repeats_no_customer_text(redis_url: str) -> None:
    asked = request(store=False)
    with redis.Redis.from_url(redis_url) as client, connect(redis_url) as link:
        link.send([publication(asked, "shoal.test")])
        envelope, _ = taken(client, "shoal.test")
    assert "river" not in json.dumps(envelope["headers"])
