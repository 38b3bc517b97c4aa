"""Tasks of plain Celery clients: translated into requests and published again, each to the queue of its model.

So they meet the same credit, batching and residency as every other request, whichever pool serves the model.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack
import redis
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Producer

from catalog.snapshot import Snapshot
from protocol import demand, names
from protocol.messages import EMBED, celery_headers
from workers.bodies import arguments
from workers.bridge import Bridge
from workers.custody import Custody
from workers.deliveries import Delivery
from workers.plain import Translated, translate
from workers.receipts import Receipt

log = logging.getLogger("shoal.forwarding")

_PERSISTENT = 2


class Publisher:
    """The worker's own way to the broker, for one thread; reconnects by itself."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer = Producer(connection, auto_declare=False)

    def publish(self, translated: Translated, body: bytes, headers: dict[str, Any]) -> None:
        """Raises kombu's OperationalError when the broker stays away."""
        lane = translated.request.lane
        queue = Queue(translated.queue, durable=True, queue_arguments=names.queue_arguments(lane), no_declare=False)
        publish = self._connection.ensure(self._producer, self._send, max_retries=3, interval_max=0.5)
        publish(queue, body, headers)

    def _send(self, queue: Queue, body: bytes, headers: dict[str, Any]) -> None:
        queue(self._producer.channel).queue_declare()
        self._producer.publish(
            body,
            routing_key=queue.name,
            exchange="",
            content_type="application/x-msgpack",
            content_encoding="binary",
            headers=headers,
            correlation_id=headers["id"],
            delivery_mode=_PERSISTENT,
        )


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Runs on the intake's thread."""

    state: "redis.Redis"
    publisher: Publisher
    catalog: Callable[[], Snapshot]
    bridge: Bridge
    custody: Custody
    ttl_s: int
    max_bytes: int
    origin: str

    def forward(self, delivery: Delivery) -> None:
        """Publish first, acknowledge after: at worst the request is there twice, under one id."""
        receipt: Receipt = delivery.receipt
        given = arguments(receipt.message, self.max_bytes)
        translated = translate(receipt.message.headers, given, self.catalog(), self.ttl_s)
        self._count(translated)
        self._publish(translated)
        self.bridge.put(partial(self.custody.drop, receipt))
        try:
            demand.wake(self.state, translated.pool, [translated.queue])
        except redis.RedisError as error:
            log.warning("workers were not woken", extra={"error": type(error).__name__})

    def _count(self, translated: Translated) -> None:
        """Before it is published: a worker that misses the wake-up finds the queue by its demand."""
        with self.state.pipeline(transaction=False) as pipe:
            demand.want(pipe, [translated.queue])
            demand.count(pipe, translated.queue, 1, translated.request.count, translated.request.cost)
            pipe.execute()

    def _publish(self, translated: Translated) -> None:
        request, payload = translated.request, translated.payload
        body = bytes(msgpack.packb([[], {"model": request.model, **payload.to_wire()}, EMBED]))
        self.publisher.publish(translated, body, celery_headers(request, self.origin))
