"""A publisher's connection to the broker, one class per broker; all of it is used by the publisher's thread alone."""

import contextlib
import os
import socket
import time
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
HEARTBEAT_S = 10  # a broker that is silent for two of them is gone
CONFIRM_S = 3.0  # a broker confirms in milliseconds; one that does not for so long is blocked, or gone
MARK_S = 86400  # how long a mark outlives the gateway that left it
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
    remembers: bool  # it still has the mark that an earlier link with this name left there

    def send(self, batch: Sequence[Outgoing]) -> None:
        """All of these are with the broker when it returns, but for those that `returned` names."""
        ...

    def returned(self) -> set[str]:
        """Ids of messages that the broker did not keep, found out since the last call."""
        ...

    def unsure(self) -> set[str]:
        """Ids of messages that the broker has not said it has; of interest when the link broke."""
        ...

    def check(self) -> None:
        """Call when idle: notices a broken connection, and keeps a good one alive."""
        ...

    def close(self) -> None:
        """The end of a link that works."""
        ...

    def abandon(self) -> None:
        """The end of one that may be broken: nothing is said to the broker, whose answer would not come."""
        ...


@contextlib.contextmanager
def connect(broker_url: str, mark: str = "") -> Iterator[Link]:
    """An open link, closed at the end without complaint; without a name for its mark it leaves none."""
    is_redis = links.is_redis(broker_url)
    link: Link = RedisLink(links.kombu_url(broker_url)) if is_redis else AmqpLink(broker_url, mark)
    try:
        yield link
    except BaseException:
        # Whatever it was may have come between two halves of a frame, after which a goodbye is never answered.
        link.abandon()
        raise
    finally:
        with contextlib.suppress(*LINK_ERRORS):
            link.close()


class RedisLink:
    """One pipeline per batch. A Redis queue is a list: it needs no declaration and cannot refuse a message."""

    blocked = False
    remembers = True  # it reconnects by itself and keeps its lists on disk; the mailbox notices a restart

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

    def unsure(self) -> set[str]:
        return set()  # an answered pipeline has it all, and one that was not is the batch's own failure

    def check(self) -> None:
        with self._channel.conn_or_acquire() as client:
            client.ping()

    def close(self) -> None:
        self._connection.release()

    def abandon(self) -> None:
        """Redis is not asked when a connection ends."""


class AmqpLink:
    """Tasks wait for the broker's confirm. What a caller waits for does not: its confirm comes when it comes, and only
    if the link breaks before, or the broker takes nothing for a while, the caller is told."""

    def __init__(self, url: str, mark: str) -> None:
        self.blocked = False
        self._url = url
        self._declared: set[str] = set()
        self._returned: set[str] = set()
        self._connections: list[Connection] = []
        self._plain = self._open(confirm=False)
        self._count_confirms(self._plain.channel)
        self._unconfirmed: dict[int, tuple[str, float]] = {}  # id and time, by number of publication
        self._publications = 0
        self._confirmed: Producer | None = None
        self.remembers = bool(mark) and self._renew_mark(mark)

    def send(self, batch: Sequence[Outgoing]) -> None:
        for outgoing in batch:
            if self.blocked:  # it said so after the batch was begun
                self._returned.add(outgoing.request.id)
            else:
                self._publish(outgoing)
        self._read(self._connections[0])
        self._limit_silence()

    def returned(self) -> set[str]:
        returned, self._returned = self._returned, set()
        return returned

    def unsure(self) -> set[str]:
        return {request_id for request_id, _ in self._unconfirmed.values()}

    def check(self) -> None:
        for connection in self._connections:
            self._read(connection)
            connection.heartbeat_check()
        self._limit_silence()

    def close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(*LINK_ERRORS):
                connection.release()

    def abandon(self) -> None:
        for connection in self._connections:
            connection.collect(socket_timeout=0.0)

    def _publish(self, outgoing: Outgoing) -> None:
        producer = self._confirming() if outgoing.request.store else self._plain
        self._declare(producer, outgoing)
        if producer is self._plain:
            self._publications += 1
            self._unconfirmed[self._publications] = outgoing.request.id, time.monotonic()
        try:
            producer.publish(**_message(outgoing), mandatory=True, timeout=TIMEOUT_S, confirm_timeout=TIMEOUT_S)
        except amqp.exceptions.MessageNacked:
            self._returned.add(outgoing.request.id)
        except TimeoutError:
            if not self.blocked:
                raise
            self._returned.add(outgoing.request.id)

    def _limit_silence(self) -> None:
        """Heartbeats would take two of their intervals to tell of a connection that swallows everything."""
        oldest = next(iter(self._unconfirmed.values()), None)
        if oldest is None or time.monotonic() - oldest[1] < CONFIRM_S:
            return
        if not self.blocked:
            raise TimeoutError("the broker confirms nothing any more")
        self._returned |= self.unsure()
        self._unconfirmed.clear()

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

    @staticmethod
    def _read(connection: Connection) -> None:
        with contextlib.suppress(TimeoutError):  # nothing more to read
            while True:
                connection.drain_events(timeout=0.001)

    def _count_confirms(self, channel: Any) -> None:
        """Without kombu's own way of confirming, which waits for each message."""
        channel.events["basic_ack"].add(self._on_confirm)
        channel.events["basic_nack"].add(self._on_refuse)
        channel.confirm_select()

    def _on_confirm(self, number: int, multiple: bool) -> set[str]:
        """On publications up to this number, or on this one alone."""
        numbers = [one for one in self._unconfirmed if one <= number] if multiple else [number]
        return {self._unconfirmed.pop(one)[0] for one in numbers if one in self._unconfirmed}

    def _on_refuse(self, number: int, multiple: bool) -> None:
        self._returned |= self._on_confirm(number, multiple)

    def _renew_mark(self, mark: str) -> bool:
        """A message that does not outlive the broker, in a queue that does; whether it was there still."""
        connection = self._connections[0]
        queue = Queue(mark, durable=True, expires=MARK_S)
        with connection.channel() as channel:
            found = bool(queue(channel).queue_declare().message_count)
        if not found:
            self._plain.publish(b"", routing_key=mark, exchange="", delivery_mode=_TRANSIENT)
            self._publications += 1
        return found

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
