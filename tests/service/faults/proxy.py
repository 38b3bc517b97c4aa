"""A network between two processes, which a test may cut or swallow. TCP on loopback, one thread for all of it."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Stands before the server of `url`; `url` of the proxy is the same with another port."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._target = parts.hostname, parts.port
        self._name = parts
        self._links: set[Link] = set()
        self._is_hole = False
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy", daemon=True)
        self._thread.start()
        assert self._is_up.wait(10)

    async def _serve(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            here = self._name.netloc.replace(f":{self._name.port}", f":{port}")
            self.url = urlunsplit(self._name._replace(netloc=here))
            self._is_up.set()
            await self._is_over.wait()
            self._abort()

    def cut(self) -> None:
        """All connections end at once, as when a firewall is reloaded."""
        self._call(self._abort)

    def swallow(self) -> None:
        """Every connection of now, and each that comes until `open`, stays open and carries nothing any more."""
        self._call(self._swallow)

    def mute(self) -> None:
        """What is sent on the connections of now still arrives; no answer does."""
        self._call(self._mute)

    def open(self) -> None:
        """New connections work again; those that were swallowed never do."""
        self._is_hole = False

    def close(self) -> None:
        self._call(self._is_over.set)
        self._thread.join(5)

    def _abort(self) -> None:
        for link in list(self._links):
            link.abort()

    def _swallow(self) -> None:
        self._is_hole = True
        for link in self._links:
            link.is_dead = True

    def _mute(self) -> None:
        for link in self._links:
            link.is_mute = True

    def _call(self, what: Callable[[], None]) -> None:
        async def run() -> None:
            what()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        link = Link(writer, there[1], is_dead=self._is_hole)
        self._links.add(link)
        await asyncio.gather(link.carry(reader, there[1]), link.carry(there[0], writer, is_answer=True))
        if not link.is_dead:  # of a swallowed one neither end hears what became of the other
            self._links.discard(link)


class Link:
    """One connection with its two ends."""

    def __init__(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter, is_dead: bool) -> None:
        self.is_dead = is_dead
        self.is_mute = False
        self._ends = here, there

    async def carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not self.is_dead and not (is_answer and self.is_mute):
                    target.write(data)
                    await target.drain()
            if not self.is_dead:
                target.close()

    def abort(self) -> None:
        for end in self._ends:
            end.transport.abort()
