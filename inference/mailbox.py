"""Where replies arrive: one Redis list per gateway process, drained by one reader that resolves waiting calls by id.

Reading takes nothing out: what was read leaves the list with the next read, after its calls were resolved. So a
connection that is cut with replies on it loses none; they are read again, and a reply nobody waits for is let go.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisError

from protocol import names, replies
from protocol.errors import QueueFull, ShoalError, TransportFailure
from protocol.replies import Reply

log = logging.getLogger("shoal.mailbox")

BLOCK_S = 2
BATCH = 256
RETRY_S = 0.2
KEPT_S = 60  # how long replies outlive the process that they are for

# KEYS: mailbox, who reads it. ARGV: who asks, how many it has read, how many to read, seconds. Only the connection that
# greeted last may take: what an earlier one had sent may arrive late, and would take what nobody has read.
TAKE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return redis.error_reply('STALE another connection reads here') end
redis.call('EXPIRE', KEYS[2], ARGV[4])
if ARGV[2] ~= '0' then redis.call('LTRIM', KEYS[1], ARGV[2], -1) end
return redis.call('LRANGE', KEYS[1], 0, ARGV[3] - 1)
"""


class Mailbox:
    """Owned by the event loop. `connected` is False while Redis cannot be reached, so no reply could arrive."""

    def __init__(self, redis_url: str, capacity: int) -> None:
        self.key = names.mailbox(uuid.uuid4().hex)
        self.connected = False
        self._capacity = capacity
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        # One bare connection, because a pooled client reconnects on its own and would hide that Redis was restarted.
        self._connections: ConnectionPool = ConnectionPool.from_url(
            redis_url, socket_connect_timeout=2, socket_timeout=BLOCK_S + 2
        )
        self._run_id: str | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @contextlib.contextmanager
    def expect(self, request_id: str) -> Iterator[asyncio.Future[Reply]]:
        """The future of this request's reply; forgotten at the end, so that nothing stays of a call given up."""
        if len(self._waiting) >= self._capacity:
            raise QueueFull(f"{self._capacity} calls wait in this gateway already")
        if not self.connected:
            raise TransportFailure("replies cannot arrive at the moment: Redis is not reachable")
        waiting = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            yield waiting
        finally:
            self._waiting.pop(request_id, None)
            if not waiting.cancel() and not waiting.cancelled():
                waiting.exception()  # seen, even if the caller left before looking

    def fail(self, request_id: str, error: ShoalError) -> None:
        """End the wait for a reply that will not come; harmless if nobody waits."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def fail_all(self, error: ShoalError) -> None:
        """What is waited for is lost with the server that held it."""
        log.warning("waiting calls failed: %s", error.message, extra={"calls": len(self._waiting)})
        for request_id in list(self._waiting):
            self.fail(request_id, error)

    async def run(self) -> None:
        """Drain the list for ever."""
        while True:
            connection: AbstractConnection = self._connections.make_connection()
            try:
                name = await self._greet(connection)
                await self._collect(connection, name)
            except (RedisError, OSError) as error:
                if self.connected:
                    log.warning("mailbox lost Redis", extra={"error": str(error)})
                self.connected = False
            finally:
                await connection.disconnect()
            await asyncio.sleep(RETRY_S)

    async def _greet(self, connection: AbstractConnection) -> str:
        """Answers this connection's name. A restarted Redis has lost every reply that was under way, and perhaps the
        requests too."""
        await connection.connect()
        await connection.send_command("INFO", "server")
        info = (await connection.read_response()).decode()
        run_id = next(line[len("run_id:") :] for line in info.splitlines() if line.startswith("run_id:"))
        if self._run_id not in (None, run_id):
            self.fail_all(TransportFailure("the reply was lost in a restart of Redis; send the call again"))
        self._run_id = run_id
        # Also a probe: a Redis that takes no writes, for want of disk or because it is a replica, gives nothing out.
        name = uuid.uuid4().hex
        await connection.send_command("SET", names.mailbox_reader(self.key), name, "EX", KEPT_S)
        await connection.read_response()
        self.connected = True
        return name

    async def _collect(self, connection: AbstractConnection, name: str) -> None:
        """Read for ever. One write asks for all there is and, in case that is nothing, for the next to come."""
        count = 0
        while True:
            take = ("EVAL", TAKE, 2, self.key, names.mailbox_reader(self.key), name, count, BATCH, KEPT_S)
            # Rotated onto its own place the first entry stays where it is: this waits and takes nothing.
            wait = ("BLMOVE", self.key, self.key, "LEFT", "LEFT", BLOCK_S)
            await connection.send_packed_command(connection.pack_commands([take, wait]))
            found = await connection.read_response()
            self._deliver(found)
            first = await connection.read_response()
            if not found and first is not None:
                found = [first]
                self._deliver(found)
            count = len(found)

    def _deliver(self, found: Sequence[bytes]) -> None:
        for packed in found:
            try:
                for reply in replies.unpack(packed):
                    self._resolve(reply)
            except Exception as error:  # the loop's edge: an entry that stayed for its error would be met for ever
                log.error("a mailbox entry could not be read", extra={"error": type(error).__name__})

    def _resolve(self, reply: Reply) -> None:
        """A reply nobody waits for is late or a duplicate: the first one counts."""
        waiting = self._waiting.pop(reply.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
