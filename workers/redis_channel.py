"""kombu's Redis transport as a worker uses it: many messages per round trip, none ever in nobody's hands.

Stock kombu asks with BRPOP, one message at a time, and registers it as unacknowledged afterwards; a worker that dies in
between loses it. Here one script does both for many messages, as far as the cost already held allows. The rest of the
transport (publishing, fanout for remote control, declarations) is kombu's own.
"""

# mypy: disallow-untyped-calls=False

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson
from kombu.transport import TRANSPORT_ALIASES, redis
from redis.exceptions import NoScriptError

from protocol import demand
from workers import redis_scripts
from workers.claiming import Backlog

log = logging.getLogger("shoal.broker")

MOST_MESSAGES = 256  # per pop: the Hub must come up for air
MOST_BYTES = 4 << 20


class Poller(redis.MultiChannelPoller):
    """Asks for no BRPOP once an event loop drives it; who drains events by hand is served as ever."""

    on_loop = False

    def _register_BRPOP(self, channel: "Channel") -> None:
        if not self.on_loop:
            super()._register_BRPOP(channel)

    def maybe_restore_messages(self) -> None:
        """Expired leases are `leases.Leases`' work."""


class Channel(redis.Channel):
    """One kombu channel. `pop` and `give_back` belong to the thread of the event loop."""

    do_restore = False  # what is held outlives the connection: its leases do

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receivers: dict[str, Callable[[Any], None]] = {}
        self._script_hash = ""

    def basic_consume(self, queue: str, no_ack: bool, callback: Callable[[Any], None], *args: Any, **kw: Any) -> Any:
        self._receivers[queue] = callback
        return super().basic_consume(queue, no_ack, callback, *args, **kw)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        self._receivers.pop(self._tag_to_queue.get(consumer_tag, ""), None)
        return super()._basic_cancel(consumer_tag)

    def pop(
        self, credits: Mapping[str, tuple[int, bool]], hold: Callable[[str], None], acknowledged: Sequence[str] = ()
    ) -> tuple[bool, set[str]]:
        """Take and deliver what the credit of each list allows: a cost, and whether one may be taken whatever it costs.

        `hold` is told each delivery tag before the message is delivered; the tags in `acknowledged` are forgotten on
        the way. Answers whether there may be more at once, and the lists that have more but no credit.
        """
        lists = [name for name in credits if self._queue(name) in self._receivers]
        if not lists and not acknowledged:
            return False, set()
        arguments = [value for name in lists for value in (credits[name][0], int(credits[name][1]))]
        limited, starved, taken, broken = self._run_pop(lists, arguments, acknowledged)
        for size in broken:
            log.error("entry dropped: not a message of kombu's", extra={"bytes": size})
        for index, tag, raw in zip(taken[::3], taken[1::3], taken[2::3], strict=True):
            self._deliver(self._queue(lists[index]), tag.decode(), raw, hold)
        return bool(limited), {lists[index] for index in starved}

    def acknowledge(self, tags: Sequence[str]) -> None:
        """Forget these messages; tags that are forgotten already do no harm."""
        with self._commands.pipeline(transaction=False) as pipe:
            self._forget(pipe, tags)
            pipe.execute()

    def give_back(self, message: Any, queue: str) -> None:
        """Return an untouched message to the end of its queue that is read next; it does not count as redelivered."""
        keys = (self.unacked_index_key, self.unacked_key, queue)
        self._commands.eval(redis_scripts.GIVE_BACK, 3, *keys, message.delivery_tag, orjson.dumps(message._raw))

    def sizes(self, queues: Iterable[str]) -> list[int]:
        with self._commands.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.llen(queue)
            return list(pipe.execute())

    def backlogs(self, queues: Sequence[str]) -> dict[str, Backlog]:
        """Of each queue its length, and when the message that is read next was published."""
        found = self._backlogs(keys=list(queues))
        pairs = zip(queues, found[::2], found[1::2], strict=True)
        return {queue: Backlog(length, float(published) if published else None) for queue, length, published in pairs}

    @cached_property
    def _backlogs(self) -> Any:
        return self._commands.register_script(demand.BACKLOGS)

    @cached_property
    def _commands(self) -> Any:
        """kombu makes a client for every command, which costs more than the command."""
        return self._create_client()

    def _queue(self, name: str) -> str:
        """The queue that a list belongs to: kombu keeps one list per priority."""
        return name.partition(self.sep)[0]

    def _run_pop(self, lists: list[str], arguments: list[int], acknowledged: Sequence[str]) -> Any:
        """In one round trip with the acknowledgements."""
        keys = (self.unacked_index_key, self.unacked_key, *lists)
        call = (len(keys), *keys, MOST_MESSAGES, MOST_BYTES, *arguments)
        try:
            with self._commands.pipeline(transaction=False) as pipe:
                self._forget(pipe, acknowledged)
                pipe.evalsha(self._script_hash, *call)
                return pipe.execute()[-1]
        except NoScriptError:
            self._script_hash = self._commands.script_load(redis_scripts.POP)
            return self._commands.evalsha(self._script_hash, *call)

    def _forget(self, pipe: Any, tags: Sequence[str]) -> None:
        if tags:
            pipe.zrem(self.unacked_index_key, *tags)
            pipe.hdel(self.unacked_key, *tags)

    def _deliver(self, queue: str, tag: str, raw: bytes, hold: Callable[[str], None]) -> None:
        try:
            payload = orjson.loads(raw)
        except ValueError:
            log.error("entry dropped: not JSON", extra={"bytes": len(raw)})
            self.acknowledge([tag])
            return
        hold(tag)
        self._receivers[queue](self._message(payload))

    def _message(self, payload: dict[str, Any]) -> Any:
        try:
            return self.Message(payload, channel=self)
        except (ValueError, TypeError, LookupError, AttributeError):
            # A body that is not what its encoding says: with an empty one the request is still answered.
            plain = {**payload["properties"], "body_encoding": None}
            return self.Message({**payload, "body": "", "properties": plain}, channel=self)


class Transport(redis.Transport):
    """What `redis://` means in a worker."""

    Channel = Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle: Any = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.cycle.on_loop = True
        super().register_with_event_loop(connection, loop)


def install() -> None:
    """Make this process's `redis://` and `rediss://` URLs mean the transport above."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{Transport.__name__}"
