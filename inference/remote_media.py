"""Media that an item names by URL, fetched for the caller without ever reaching into the operator's own network.

Only hosts that the operator listed are asked. At every hop the name is resolved, each of its addresses must be public,
and the connection goes to an address that was checked, so a name that answers differently a moment later changes
nothing. Whatever forbids a URL reads the same to its caller: an answer that differed would map the network behind.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from protocol.errors import InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_URL_CHARACTERS = 4096
MAX_HEAD_BYTES = 16 << 10
MAX_ADDRESSES = 4  # of one name, tried in turn
AT_ONCE = 16  # fetches of one gateway process, each of which may hold the most bytes
CHUNK_BYTES = 64 << 10
PORTS = {"https": 443, "http": 80}
REDIRECTS = frozenset({301, 302, 303, 307, 308})

_BYTES = ("application/octet-stream", "binary/octet-stream")  # what stores say of a file they know nothing of
TYPES: Mapping[str, tuple[str, ...]] = {
    "images": ("image/", *_BYTES),
    "audio": ("audio/", "video/", *_BYTES),
    "video": ("video/", *_BYTES),
    "document": ("application/", "text/", "image/", *_BYTES),
}

_ORIGIN = re.compile(r"(?:(https?)://)?((?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")
_PRINTABLE = re.compile(r"[!-\[\]-~]+")  # no blank, no control character, no backslash, which parsers read in two ways

# Beyond what the address registries call not global: each reaches, or may stand for, something inside.
_INSIDE = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # a cloud's own services, on an address that looks public
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata is among them
        "192.88.99.0/24",  # relays into IPv6
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # an IPv4 address inside an IPv6 one
        "3fff::/20",  # documentation
    )
)
_UNICAST = ipaddress.ip_network("2000::/3")  # all of IPv6 that is assigned; translators of IPv4 lie outside


@dataclass(frozen=True, slots=True)
class Origin:
    """A host that may be asked; `*.` before it stands for all names below it."""

    scheme: str
    host: str
    port: int

    def covers(self, scheme: str, host: str, port: int) -> bool:
        is_host = host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host
        return is_host and (scheme, port) == (self.scheme, self.port)


@dataclass(frozen=True, slots=True)
class Limits:
    max_bytes: int = 32 << 20
    timeout_s: float = 10.0  # for all hops together, waiting for a turn included
    redirects: int = 3


def parse_origins(words: Iterable[str]) -> tuple[Origin, ...]:
    """Hosts as an operator lists them: `host`, `*.host`, `host:port`, or `http://host`. Raises ValueError."""
    return tuple(_parse_origin(word) for word in words)


def _parse_origin(word: str) -> Origin:
    match = _ORIGIN.fullmatch(word.lower())
    if match is None or not 0 < int(match[3] or 1) < 65536:
        raise ValueError(f"{word!r} is no host such as images.example.com, *.example.com or http://example.com:8080")
    scheme = match[1] or "https"
    return Origin(scheme, match[2].strip("[]"), int(match[3] or PORTS[scheme]))


def is_public(address: Address) -> bool:
    """Whether an address is out in the Internet, not here, beside here, or in a cloud's own network."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address not in _UNICAST:
            return False
    is_inside = any(address in network for network in _INSIDE)
    return address.is_global and not (address.is_multicast or address.is_reserved or is_inside)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Every address of a name; also of what only looks like one: `0x7f000001` is an address to a resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(answer[4][0]) for answer in found]


class RemoteMedia:
    """`fetch` raises InvalidInput that names the field, and nothing else."""

    def __init__(
        self,
        origins: Iterable[Origin],
        limits: Limits | None = None,
        *,
        may_reach: Callable[[Address], bool] = is_public,
        resolve: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`may_reach` and `tls` are for tests, whose servers are on this machine."""
        self._origins = tuple(origins)
        self._limits = limits or Limits()
        self._may_reach = may_reach
        self._resolve = resolve
        self._tls = tls or ssl.create_default_context()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def fetch(self, url: str, where: str, kind: str = "document") -> bytes:
        """The bytes at `url`, which the field `where` named for a medium of this kind (see `protocol.media`)."""
        try:
            async with asyncio.timeout(self._limits.timeout_s), self._turns:
                return await self._follow(url, where, TYPES[kind])
        except TimeoutError:
            message = f"the URL was not read within {self._limits.timeout_s:g} s"
        except (OSError, h11.ProtocolError, ValueError):  # the last: a place to go on to that is no URL
            message = "the URL could not be read: its server does not answer as HTTP servers do"
        raise InvalidInput(message, param=where)

    async def _follow(self, url: str, where: str, types: Sequence[str]) -> bytes:
        for _ in range(self._limits.redirects + 1):
            parts = self._check(url, where)
            addresses = await self._addresses(parts, where)
            async with self._connected(parts, addresses) as link:
                head = await link.head()
                if head.status_code not in REDIRECTS:
                    return await self._read(link, head, where, types)
            url = urljoin(url, _header(head, b"location"))
        raise InvalidInput(f"the URL redirects more than {self._limits.redirects} times", param=where)

    def _check(self, url: str, where: str) -> SplitResult:
        """The parts of a URL whose host is listed, as far as that can be told without a resolver."""
        if len(url) > MAX_URL_CHARACTERS or not _PRINTABLE.fullmatch(url):
            raise _refused(where)
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError:
            raise _refused(where) from None
        host = parts.hostname or ""
        if "@" in parts.netloc or not any(origin.covers(parts.scheme, host, port) for origin in self._origins):
            raise _refused(where)
        return parts

    async def _addresses(self, parts: SplitResult, where: str) -> Sequence[str]:
        """One address inside is enough to refuse them all: whoever gave it names others at will."""
        try:
            found = await self._resolve(parts.hostname or "", _port(parts))
            addresses = [ipaddress.ip_address(address) for address in found]
        except (OSError, UnicodeError, ValueError):
            raise _refused(where) from None
        if not addresses or not all(self._may_reach(address) for address in addresses):
            raise _refused(where)
        return list(dict.fromkeys(map(str, addresses)))[:MAX_ADDRESSES]

    @asynccontextmanager
    async def _connected(self, parts: SplitResult, addresses: Sequence[str]) -> AsyncIterator["_Link"]:
        tls, name = (self._tls, parts.hostname) if parts.scheme == "https" else (None, None)
        for address in addresses:
            try:
                reader, writer = await asyncio.open_connection(address, _port(parts), ssl=tls, server_hostname=name)
                break
            except OSError:
                if address == addresses[-1]:
                    raise
        try:
            link = _Link(reader, writer)
            await link.ask(parts)
            yield link
        finally:
            writer.transport.abort()  # nothing more is wanted, whatever the server still sends

    async def _read(self, link: "_Link", head: h11.Response, where: str, types: Sequence[str]) -> bytes:
        if head.status_code != 200:
            raise InvalidInput(f"the URL's server answered {head.status_code}", param=where)
        media_type = _header(head, b"content-type").partition(";")[0].strip().lower()
        if not media_type.startswith(tuple(types)):
            raise InvalidInput(f"the URL must lead to {_listed(types)}", param=where)
        if _header(head, b"content-encoding").lower() not in ("", "identity"):
            raise InvalidInput("the URL's server compressed what it was asked to send plain", param=where)
        most = self._limits.max_bytes
        declared = _header(head, b"content-length")
        content = bytearray()
        if not (declared.isdigit() and int(declared) > most):
            async for chunk in link.body():
                content += chunk
                if len(content) > most:
                    break
            else:
                return bytes(content)
        raise InvalidInput(f"the URL leads to more than {most} bytes", param=where)


class _Link:
    """One connection, one request, one answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def ask(self, parts: SplitResult) -> None:
        """No cookie, no referrer, nothing of the caller's but the URL."""
        headers = {"Host": parts.netloc, "User-Agent": "shoal", "Accept": "*/*", "Accept-Encoding": "identity"}
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        asked = h11.Request(method="GET", target=target, headers=[*headers.items(), ("Connection", "close")])
        self._writer.write((self._http.send(asked) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()

    async def head(self) -> h11.Response:
        while not isinstance(event := await self._next(), h11.Response):
            pass  # what a server says on its way to the answer
        return event

    async def body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(CHUNK_BYTES))
        return event


def _port(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme]


def _header(head: h11.Response, name: bytes) -> str:
    return next((value.decode("latin-1") for found, value in head.headers if found == name), "")


def _listed(types: Sequence[str]) -> str:
    return " or ".join(f"{one}…" if one.endswith("/") else one for one in types)


def _refused(where: str) -> InvalidInput:
    message = "the URL may not be fetched: its host must be one that SHOAL_MEDIA_HOSTS lists, as listed, and public"
    return InvalidInput(message, param=where)
