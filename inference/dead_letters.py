"""Dead letters as operators meet them: listed, looked into, sent again, dropped. Synchronous; no call waits for it.

A replay goes out under the old id, and its result is kept under it: of a task where its caller still looks, of a call
that somebody once waited for as a task that its caller may read. Repeating a replay is harmless: one id has one result.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgpack
import redis

from catalog.snapshot import EMPTY, Snapshot
from inference import broker
from protocol import clock, codec, dead_letters, demand, names
from protocol.dead_letters import DeadLetter
from protocol.errors import ModelNotFound, QueueUnavailable
from protocol.messages import Request
from protocol.spec import ModelSpec
from protocol.tasks import facts_of

PAGE = 200
_CLAIM_S = 60

# KEYS: claim, result, task, attempts, cancels, payload. ARGV: id, seconds of the claim, seconds the payload is kept,
# unix time the task is forgotten, then the task's facts. Answers 'busy', 'done', or the failure that it took away.
_PREPARE = """
local result = redis.call('GET', KEYS[2])
local is_read, meta = pcall(cjson.decode, result or 'null')
if result and is_read and meta['status'] ~= 'FAILURE' then return 'done' end
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[2]) then return 'busy' end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('EXPIRE', KEYS[6], ARGV[3])
for place = 5, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[place], ARGV[place + 1]) end
redis.call('EXPIREAT', KEYS[3], ARGV[4])
return result or ''
"""


@dataclass(frozen=True, slots=True)
class _Outgoing:
    request: Request
    queue: str
    body: bytes


class DeadLetters:
    """Raises RedisError while Redis is away."""

    def __init__(self, state: "redis.Redis", broker_url: str, ttl_s: int) -> None:
        self._state: Any = state  # its client is not typed by what answers
        self._broker_url = broker_url
        self._ttl_s = ttl_s

    def count(self) -> int:
        return int(self._state.zcard(names.DEAD))

    def newest(self, most: int = PAGE) -> list[DeadLetter]:
        ids = self._state.zrevrange(names.DEAD, 0, most - 1)
        return [letter for letter in map(self.get, (found.decode(errors="replace") for found in ids)) if letter]

    def get(self, letter_id: str) -> DeadLetter | None:
        with self._state.pipeline(transaction=True) as pipe:
            pipe.hget(names.DEAD_FACTS, letter_id)
            pipe.hexists(names.DEAD_MESSAGES, letter_id)
            facts, has_message = pipe.execute()
        try:
            return None if facts is None else dead_letters.read(facts, bool(has_message))
        except (ValueError, TypeError, KeyError):
            return None

    def payload(self, letter_id: str) -> Any:
        """What the caller sent, for an operator who asked for it; None when it is not kept."""
        body = self._state.hget(names.DEAD_MESSAGES, letter_id)
        given = None if body is None else msgpack.unpackb(body)[1]
        if given is not None and "blob" in given:
            kept = self._state.get(names.blob(letter_id))
            return None if kept is None else codec.unpack(kept)
        return given

    def drop(self, letter_ids: Iterable[str]) -> int:
        """Forget these for good; answers how many there were."""
        ids = list(letter_ids)
        return int(self._state.eval(dead_letters.DROP, *dead_letters.drop_arguments(*ids))) if ids else 0

    def replay(self, letter_ids: Iterable[str]) -> dict[str, str]:
        """Send these again. By id, why one was not sent; '' when it was."""
        snapshot = self._catalog()
        return {letter_id: self._replay(letter_id, snapshot) for letter_id in letter_ids}

    def _replay(self, letter_id: str, snapshot: Snapshot) -> str:
        letter, body = self.get(letter_id), self._state.hget(names.DEAD_MESSAGES, letter_id)
        if letter is None:
            return "it is no dead letter, or no longer"
        if body is None:
            return "its message was not kept, so it cannot be sent again"
        try:
            spec = snapshot.resolve(letter.model).model.spec
        except ModelNotFound:
            return f"the catalog has no model {letter.model!r}"
        request = self._request(letter, spec, clock.now())
        before = self._prepare(request, spec)
        if before == b"busy":
            return "somebody is sending it again at this moment"
        if before == b"done":
            self.drop([letter_id])
            return "it has a result already"
        queue = names.queue(spec.pool, spec.model, request.lane)
        self._send(_Outgoing(request, queue, body), spec, before)
        self._state.eval(dead_letters.RETIRE, *dead_letters.retire_arguments(letter))
        self._state.delete(names.replaying(letter_id))
        return ""

    def _request(self, letter: DeadLetter, spec: ModelSpec, now: float) -> Request:
        """The same work, for the model as the catalog has it now, with time to be done."""
        return Request(
            id=letter.id,
            primitive=letter.primitive,
            model=letter.model,
            digest=spec.digest,
            cost=letter.cost,
            count=letter.count,
            deadline=now + self._ttl_s,
            published=now,
            lane=letter.lane,
            store=True,
            key=letter.key,
        )

    def _prepare(self, request: Request, spec: ModelSpec) -> bytes:
        """Make room for a result: the failure goes, the counts of its starts go, its task is there again."""
        keys = (
            names.replaying(request.id),
            names.task_result(request.id),
            names.task(request.id),
            names.attempts(request.id),
            names.CANCELLED,
            names.blob(request.id),
        )
        facts = [part for pair in facts_of(request, spec.pool).items() for part in pair]
        forgotten = int(request.deadline) + self._ttl_s
        found = self._state.eval(_PREPARE, len(keys), *keys, request.id, _CLAIM_S, self._ttl_s + 60, forgotten, *facts)
        return bytes(found)

    def _send(self, outgoing: _Outgoing, spec: ModelSpec, failure: bytes) -> None:
        """Counted before and announced after, as gateways do. What the broker did not take fails as it was."""
        request = outgoing.request
        try:
            with self._state.pipeline(transaction=False) as pipe:
                demand.want(pipe, [outgoing.queue])
                demand.count(pipe, outgoing.queue, 1, request.count, request.cost)
                pipe.execute()
            with broker.connect(self._broker_url) as link:
                link.send([outgoing])
                if request.id in link.returned():
                    raise QueueUnavailable("the broker did not take the message")
        except (*broker.LINK_ERRORS, QueueUnavailable) as error:
            self._undo(request, failure)
            raise QueueUnavailable("the broker cannot be reached; the dead letter is kept") from error
        demand.wake(self._state, spec.pool, [outgoing.queue])

    def _undo(self, request: Request, failure: bytes) -> None:
        if failure:
            self._state.set(names.task_result(request.id), failure, ex=self._ttl_s, nx=True)
        self._state.expire(names.blob(request.id), dead_letters.KEPT_S)
        self._state.delete(names.replaying(request.id))

    def _catalog(self) -> Snapshot:
        text = self._state.get(names.CATALOG)
        return EMPTY if text is None else Snapshot.from_json(text)
