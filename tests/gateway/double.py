"""A worker for gateway tests: it hears of work through the wake stream, answers as a script says, and beats."""

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import redis

from protocol import blobs, names, native, replies
from protocol.errors import ShoalError
from protocol.messages import HEADER, Payload, Request
from protocol.replies import Reply
from workers.families.fake import vector

DIMS = 8


@dataclass(frozen=True, slots=True)
class Received:
    """One message as it arrived."""

    request: Request
    payload: Payload
    envelope: Mapping[str, Any]
    body: Any


Answer = Callable[[Received], Reply | None]


def encode(received: Received) -> Reply:
    """The fake family's vectors, one token per word."""
    results = [
        encoded(item.get("text", " ".join(map(str, item.get("token_ids", ()))))) for item in received.payload.items
    ]
    timing = {"queue": 1.5, "prepare": 0.25, "forward": 3.0, "finish": 0.0}
    return Reply(received.request.id, results, timing=timing, worker="double-1")


def encoded(text: str, dims: int = DIMS) -> dict[str, Any]:
    dense = {"dims": dims, "dtype": "float32", "values": vector(text, dims)}
    return {"dense": dense, "tokens": max(len(text.split()), 1), "truncated": False}


def failing(error: ShoalError) -> Answer:
    return lambda received: Reply(received.request.id, error=error.to_wire())


def silent(received: Received) -> None:
    """Takes the request and never answers."""


class WorkerDouble:
    """Serves one pool from a thread of its own; tests read `received` and replace `answer`."""

    def __init__(self, redis_url: str, folder: Path, pool: str = "default", models: Sequence[Any] = ()) -> None:
        self.answer: Answer = encode
        self.received: list[Received] = []
        self.is_beating = True
        self.held: dict[str, Any] = {}  # by queue
        self.states: dict[str, Any] = {spec.digest: _state(spec.model, spec.digest) for spec in models}
        self._redis: Any = redis.Redis.from_url(redis_url)
        self._folder = folder
        self._pool = pool
        self._next_beat = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker double", daemon=True)

    def start(self) -> "WorkerDouble":
        self.beat()
        self._seen = self._last_id()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)
        self._redis.close()

    def beat(self) -> None:
        beat = {
            "id": "double-1",
            "pool": self._pool,
            "device": "cpu",
            "pid": 1,
            "memory": {"capacity": 1000, "used": 10},
            "engines": [{"bundle": "base", "pid": 2}],
            "models": list(self.states.values()),
            "counters": {"forwards": len(self.received)},
            "queues": self.held,
            "draining": False,
        }
        self._redis.set(names.worker("double-1"), json.dumps(beat), ex=5)
        self._redis.zadd(names.WORKERS, {"double-1": time.time()})

    def vanish(self) -> None:
        """What is left of a worker some seconds after it died."""
        self.is_beating = False
        self._redis.delete(names.worker("double-1"))

    def send(self, reply: Reply, mailbox: str) -> None:
        self._redis.rpush(mailbox, replies.pack([reply]))

    def cancelled(self) -> set[str]:
        return {member.decode() for member in self._redis.zrange(names.CANCELLED, 0, -1)}

    def _last_id(self) -> Any:
        last = self._redis.xrevrange(names.wake_stream(self._pool), count=1)
        return last[0][0] if last else "0"

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(redis.ConnectionError):  # a test may kill the server
                self._look()

    def _look(self) -> None:
        if self.is_beating and time.monotonic() >= self._next_beat:
            self.beat()
            self._next_beat = time.monotonic() + 0.5
        for _, entries in self._redis.xread({names.wake_stream(self._pool): self._seen}, block=100):
            for self._seen, fields in entries:
                for queue in json.loads(fields.get(b"q", b"[]")):
                    self._drain(queue)

    def _drain(self, queue: str) -> None:
        while (raw := self._redis.rpop(queue)) is not None:
            envelope = json.loads(raw)
            body = msgpack.unpackb(base64.b64decode(envelope["body"]))
            headers = envelope["headers"]
            request = Request.from_header(headers["id"], headers[HEADER])
            received = Received(request, self._payload(body[1]), envelope, body)
            self.received.append(received)
            reply = self.answer(received)
            if reply is not None:
                self._deliver(received, reply)

    def _payload(self, arguments: Mapping[str, Any]) -> Payload:
        if "blob" in arguments:
            return blobs.unpack_payload(blobs.fetch(arguments["blob"], self._folder, self._redis.get))
        return Payload(arguments["items"], arguments["options"], arguments.get("query"))

    def _deliver(self, received: Received, reply: Reply) -> None:
        request = received.request
        if request.reply is not None:
            self.send(reply, request.reply)
        if request.store:
            meta = stored(received, reply)
            if self._redis.set(names.task_result(request.id), meta, nx=True, ex=60):
                self._redis.publish(names.task_result(request.id), meta)


def stored(received: Received, reply: Reply) -> bytes:
    """What Celery's backend keeps."""
    request, payload = received.request, received.payload
    meta: dict[str, Any] = {"task_id": request.id, "traceback": None, "children": []}
    if reply.error is not None:
        failure = {"exc_type": reply.error["code"], "exc_message": [reply.error["message"]], "exc_module": None}
        return native.dumps({**meta, "status": "FAILURE", "result": failure, "shoal_error": reply.error})
    assert reply.results is not None
    ids = [item.get("id") for item in payload.items]
    asked = native.Asked(request.primitive, request.model, ids, (payload.query or {}).get("id"))
    body = native.json_body(asked, reply.results, reply.timing)
    return native.dumps({**meta, "status": "SUCCESS", "result": body})


def _state(model: str, digest: str) -> dict[str, Any]:
    return {"model": model, "digest": digest, "state": "loaded", "bytes": 100, "progress": 1.0, "error": None}


def quantised(received: Received) -> Reply:
    """int8 as workers write it."""
    reply = encode(received)
    values = np.array([1, -2, 3, 4, 5, 6, 7, 8], np.int8)
    dense = {"dims": DIMS, "dtype": "int8", "values": values, "scale": 0.5, "offset": 0.0}
    return replace(reply, results=[{"dense": dense, "tokens": 1, "truncated": False} for _ in received.payload.items])
