"""What service tests drive a worker with: real worker processes, and a stand-in for a gateway that speaks its wire."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import redis
from celery import Celery
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Producer

from catalog.snapshot import Model, Snapshot
from project.celery import worker_argv, worker_environment
from protocol import links, names, replies
from protocol.messages import EMBED, Request, celery_headers
from protocol.replies import Reply
from protocol.spec import ModelSpec

ROOT = Path(__file__).resolve().parents[2]


def fake_model(
    name: str, *, budget: int | None = None, max_items: int = 256, pool: str = "default", **load: Any
) -> Model:
    """An entry of the fake family; `load` are its load options, `forward_s` the most useful."""
    return Model(
        ModelSpec(
            model=name,
            family="fake",
            primitives=("encode",),
            outputs=("dense",),
            dims={"dense": 8},
            load=load,
            budget=budget,
            max_items=max_items,
            pool=pool,
        )
    )


def wait_until(holds: Callable[[], Any], timeout: float = 15.0, what: str = "it") -> Any:
    """The first truthy value; fails after `timeout`."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        value = holds()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true within {timeout} s")


@dataclass
class Services:
    """Where a test's broker and Redis are."""

    broker_url: str
    redis_url: str


@dataclass
class Worker:
    """A device worker's process."""

    id: str
    process: subprocess.Popen[bytes]
    log: Path

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As the kernel would: no farewell."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM; answers the exit status."""
        self.process.terminate()
        return self.process.wait(timeout)

    def wait_for_log(self, phrase: str, timeout: float = 15.0) -> None:
        wait_until(lambda: phrase in self.log.read_text(), timeout, f"log line {phrase!r} of {self.id}")


@dataclass
class Fleet:
    """Starts workers and ends those that the test has not ended."""

    services: Services
    folder: Path
    workers: list[Worker] = field(default_factory=list)

    def start(self, worker_id: str | None = None, *, wait: bool = True, **settings: Any) -> Worker:
        worker_id = worker_id or f"w{len(self.workers) + 1}"
        log = self.folder / f"{worker_id}.{len(self.workers)}.log"
        environment = worker_environment(worker_id)
        environment.pop("PYTEST_CURRENT_TEST", None)
        environment |= {
            "SHOAL_REDIS_URL": self.services.redis_url,
            "SHOAL_BROKER_URL": self.services.broker_url,
            "SHOAL_DATA": str(self.folder / "data"),
            "SHOAL_MEMORY_BYTES": "1G",
            "SHOAL_OFFLINE": "1",
            **{name: str(value) for name, value in settings.items()},
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *worker_argv(worker_id)], cwd=ROOT, env=environment, stdout=output, stderr=output
            )
        worker = Worker(worker_id, process, log)
        self.workers.append(worker)
        if wait:
            worker.wait_for_log(" ready.")
        return worker

    def end(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()


class Gateway:
    """Publishes as a gateway does and collects what comes into its mailbox."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.redis = redis.Redis.from_url(services.redis_url, socket_timeout=60)
        self.mailbox = names.mailbox(uuid.uuid4().hex)
        self._connection = Connection(links.kombu_url(services.broker_url))
        self._producer = Producer(self._connection.channel(), auto_declare=False)

    def close(self) -> None:
        self._connection.release()
        self.redis.close()

    def serve(self, *models: Model, declare: bool = True) -> None:
        """Publish a catalog of these, whose queues are empty: RabbitMQ may have kept something for an earlier test."""
        for model in models if declare else ():
            self._declare(self.queue(model)).purge()
        snapshot = Snapshot(time.time_ns() // 1000, models)
        self.redis.set(names.CATALOG, snapshot.to_json())
        self.redis.set(names.CATALOG_VERSION, snapshot.version)
        self.redis.publish(names.CATALOG_VERSION, snapshot.version)

    def request(self, model: Model, **fields: Any) -> Request:
        now = time.time()
        defaults: dict[str, Any] = {
            "id": str(uuid.uuid4()),
            "primitive": "encode",
            "model": model.spec.model,
            "digest": model.spec.digest,
            "cost": 1,
            "count": 1,
            "deadline": now + 60,
            "published": now,
            "reply": self.mailbox,
        }
        return Request(**(defaults | fields))

    def send(self, model: Model, text: str = "hello", *, wake: bool = True, **fields: Any) -> str:
        """One request of one text; answers its id."""
        request = self.request(model, **fields)
        body = msgpack.packb([[], {"model": request.model, "items": [{"text": text}], "options": {}}, EMBED])
        self.publish(self.queue(model, request.lane), celery_headers(request, "test"), body, wake=wake)
        return request.id

    def queue(self, model: Model, lane: str = "interactive") -> str:
        return names.queue(model.spec.pool, model.spec.model, lane)

    def publish(
        self,
        queue: str,
        headers: dict[str, Any],
        body: bytes,
        *,
        wake: bool = True,
        content_type: str = "application/x-msgpack",
    ) -> None:
        if queue != names.INTAKE_QUEUE:
            self._declare(queue)
        self._producer.publish(
            body,
            routing_key=queue,
            exchange="",
            content_type=content_type,
            content_encoding="binary",
            headers=headers,
            correlation_id=str(headers.get("id")),
            delivery_mode=2,
        )
        if wake:
            self.wake([queue])

    def _declare(self, name: str) -> Queue:
        arguments = names.queue_arguments(name.rpartition(".")[2])
        queue = Queue(name, durable=True, queue_arguments=arguments)(self._producer.channel)
        queue.queue_declare()
        return queue

    def wake(self, queues: Sequence[str], pool: str = "default") -> None:
        self.redis.zadd(names.DEMAND, dict.fromkeys(queues, time.time()))
        self.redis.xadd(names.wake_stream(pool), {"q": json.dumps(list(queues))}, maxlen=256)

    def cancel(self, request_id: str, pool: str = "default") -> None:
        self.redis.zadd(names.CANCELLED, {request_id: time.time()})
        self.redis.xadd(names.wake_stream(pool), {"c": request_id}, maxlen=256)

    def collect(self, ids: Iterable[str], timeout: float = 20.0) -> dict[str, Reply]:
        """Replies to all of these; others that come are dropped. Fails when one is missing after `timeout`."""
        missing, found, until = set(ids), {}, time.monotonic() + timeout
        while missing:
            entry: Any = self.redis.blpop([self.mailbox], timeout=max(until - time.monotonic(), 0.01))
            assert entry is not None, f"no reply to {len(missing)} requests after {timeout} s"
            for reply in replies.unpack(entry[1]):
                if reply.id in missing:
                    missing.discard(reply.id)
                    found[reply.id] = reply
        return found

    def mail(self) -> list[Reply]:
        """What lies in the mailbox now."""
        entries: Any = self.redis.lpop(self.mailbox, 10_000) or []
        return [reply for entry in entries for reply in replies.unpack(entry)]

    def beat(self, worker: Worker) -> dict[str, Any]:
        found: Any = self.redis.get(names.worker(worker.id))
        return json.loads(found) if found else {}

    def items_run(self, *workers: Worker) -> int:
        """How many items these workers have put through forwards, as their beats say."""
        return sum(self.beat(worker).get("counters", {}).get("items", 0) for worker in workers)

    def unacknowledged(self) -> int:
        """On a Redis broker."""
        broker = redis.Redis.from_url(self.services.broker_url)
        with broker:
            return int(broker.hlen("unacked"))


def plain_client(services: Services) -> Celery:
    """A Celery client that knows nothing of Shoal."""
    return Celery(
        "plain",
        broker=links.kombu_url(services.broker_url),
        backend=links.kombu_url(services.redis_url),
        set_as_current=False,
    )


def end_quietly(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
