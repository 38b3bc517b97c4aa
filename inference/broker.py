"""A publisher's connection to the broker, one class per broker; all of it is used by the publisher's thread alone."""

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import amqp.exceptions
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.exceptions import KombuError
from kombu.messaging import Producer
from redis.exceptions import RedisError

from protocol import links, names
from protocol.messages import Request, celery_headers

# Whatever a broken connection may raise, by any transport; the publisher answers with a new connection.
LINK_ERRORS = (OSError, EOFError, RedisError, amqp.exceptions.AMQPError, KombuError)

BATCH = 128
TIMEOUT_S = 2
HEARTBEAT_S = 30
ORIGIN = f"gen{os.getpid()}@{socket.gethostname()}"
_REPLY_TO = str(uuid.uuid4())  # what Celery's rpc backend would use; part of every message it sends
_TRANSIENT, _PERSISTENT = 1, 2


class Outgoing(Protocol):
    """What a link needs to know of a publication."""

    @property
    def request(self) -> Request: ...
    @property
    def queue(self) -> str: ...
    @property
    def body(self) -> bytes: ...


class Link(Protocol):
    """An open connection. Every method may raise LINK_ERRORS, after which the link is of no more use."""

    blocked: bool  # the broker has no memory or disk left and takes nothing for now

    def send(self, batch: Sequence[Outgoing]) -> None:
        """All of these are with the broker when it returns, but for those that `returned` names."""
        ...

    def returned(self) -> set[str]:
        """Ids of messages that found no queue since the last call."""
        ...

    def check(self) -> None:
        """Call when idle: notices a broken connection, and keeps a good one alive."""
        ...

    def close(self) -> None: ...


@contextlib.contextmanager
def connect(broker_url: str) -> Iterator[Link]:
    """An open link, closed at the end without complaint."""
    link: Link = RedisLink(links.kombu_url(broker_url)) if links.is_redis(broker_url) else AmqpLink(broker_url)
    try:
        yield link
    finally:
        with contextlib.suppress(*LINK_ERRORS):
            link.close()


class RedisLink:
    """One pipeline per batch. A Redis queue is a list: it needs no declaration and cannot refuse a message."""

    blocked = False

    def __init__(self, url: str) -> None:
        options = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S, "socket_keepalive": True}
        self._connection = Connection(url, transport_options={**options, "priority_steps": [0]})
        self._channel = self._connection.channel()
        self._producer = Producer(self._channel, auto_declare=False)

    def send(self, batch: Sequence[Outgoing]) -> None:
        with self._producer.batch(BATCH):
            for outgoing in batch:
                self._producer.publish(**_message(outgoing))

    def returned(self) -> set[str]:
        return set()

    def check(self) -> None:
        with self._channel.conn_or_acquire() as client:
            client.ping()

    def close(self) -> None:
        self._connection.release()


class AmqpLink:
    """Sends what a caller waits for without confirms, since the caller notices a loss; tasks wait for the broker's."""

    def __init__(self, url: str) -> None:
        self.blocked = False
        self._url = url
        self._declared: set[str] = set()
        self._returned: set[str] = set()
        self._connections: list[Connection] = []
        self._plain = self._open(confirm=False)
        self._confirmed: Producer | None = None

    def send(self, batch: Sequence[Outgoing]) -> None:
        for outgoing in batch:
            producer = self._confirming() if outgoing.request.store else self._plain
            self._declare(producer, outgoing)
            try:
                producer.publish(**_message(outgoing), mandatory=True, timeout=TIMEOUT_S, confirm_timeout=TIMEOUT_S)
            except amqp.exceptions.MessageNacked:
                self._returned.add(outgoing.request.id)

    def returned(self) -> set[str]:
        returned, self._returned = self._returned, set()
        return returned

    def check(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(TimeoutError):  # nothing more to read
                while True:
                    connection.drain_events(timeout=0.001)
            connection.heartbeat_check()

    def close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(*LINK_ERRORS):
                connection.release()

    def _open(self, confirm: bool) -> Producer:
        options = {
            "confirm_publish": confirm,
            "on_blocked": lambda reason: self._set_blocked(True),
            "on_unblocked": lambda: self._set_blocked(False),
            "read_timeout": TIMEOUT_S,
            "write_timeout": TIMEOUT_S,
        }
        connection = Connection(self._url, heartbeat=HEARTBEAT_S, connect_timeout=TIMEOUT_S, transport_options=options)
        self._connections.append(connection)
        return Producer(connection.channel(), auto_declare=False, on_return=self._on_return)

    def _confirming(self) -> Producer:
        if self._confirmed is None:
            self._confirmed = self._open(confirm=True)
        return self._confirmed

    def _declare(self, producer: Producer, outgoing: Outgoing) -> None:
        """As workers declare it: two declarations must be equal."""
        if outgoing.queue not in self._declared:
            arguments = names.queue_arguments(outgoing.request.lane)
            Queue(outgoing.queue, durable=True, queue_arguments=arguments)(producer.channel).queue_declare()
            self._declared.add(outgoing.queue)

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """The queue is gone, against all expectation; the next publication declares it anew."""
        self._declared.discard(routing_key)
        self._returned.add(message.properties["correlation_id"])

    def _set_blocked(self, blocked: bool) -> None:
        self.blocked = blocked


def _message(outgoing: Outgoing) -> dict[str, Any]:
    """What Celery's own client would publish; `tests/gateway/test_message.py` compares the two."""
    request = outgoing.request
    return {
        "body": outgoing.body,
        "routing_key": outgoing.queue,
        "exchange": "",
        "content_type": "application/x-msgpack",
        "content_encoding": "binary",
        "headers": celery_headers(request, ORIGIN),
        "correlation_id": request.id,
        "reply_to": _REPLY_TO,
        "priority": None,  # lanes are queues
        "delivery_mode": _PERSISTENT if request.store else _TRANSIENT,
    }
