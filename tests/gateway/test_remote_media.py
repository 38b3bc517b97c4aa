"""Media by URL: what may be fetched, from real servers on this machine, and all that may not."""

import asyncio
import ipaddress
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inference import remote_media
from inference.remote_media import Address, Limits, Origin, RemoteMedia, is_public, parse_origins
from protocol.errors import InvalidInput

PNG = b"\x89PNG" + bytes(range(256))
WHERE = "items[0].images[0].url"
Script = bytes | Callable[[asyncio.StreamWriter], Any]


def answer(body: bytes, media_type: str = "image/png", *more: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {media_type}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def moved(to: str, status: str = "302 Found") -> bytes:
    return answer(b"", "text/plain", f"Location: {to}", status=status)


@dataclass
class Server:
    """Answers each path as its script says, and remembers who came."""

    port: int = 0
    scripts: dict[str, Script] = field(default_factory=dict)
    connections: int = 0
    asked: list[list[str]] = field(default_factory=list)  # the lines of each request

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            self.asked.append(lines)
            script = self.scripts[lines[0].split(" ")[1]]
            if isinstance(script, bytes):
                writer.write(script)
            else:
                await script(writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return  # the client has left
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    async with await asyncio.start_server(one.serve, "127.0.0.1", 0) as listening:
        one.port = listening.sockets[0].getsockname()[1]
        yield one


@pytest.fixture
async def inside() -> AsyncIterator[Server]:
    """What nobody may reach."""
    one = Server(scripts={"/": answer(b"secret")})
    async with await asyncio.start_server(one.serve, "127.0.0.1", 0) as listening:
        one.port = listening.sockets[0].getsockname()[1]
        yield one


def or_here(address: Address) -> bool:
    return is_public(address) or address.is_loopback


def origins(*servers: Server) -> tuple[Origin, ...]:
    return parse_origins([server.url for server in servers])


def media(*servers: Server, **limits: Any) -> RemoteMedia:
    """May fetch from these servers, which are on this machine."""
    return RemoteMedia(origins(*servers), Limits(**limits), may_reach=or_here)


async def refusal(remote: RemoteMedia, url: str, kind: str = "images") -> str:
    with pytest.raises(InvalidInput) as caught:
        await remote.fetch(url, WHERE, kind)
    assert caught.value.param == WHERE
    return caught.value.message


FORBIDDEN = "the URL may not be fetched: its host must be one that SHOAL_MEDIA_HOSTS lists, as listed, and public"

INSIDE = """
0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.9.9.9 168.63.129.16 169.254.169.254
172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.51.100.1
203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1
::ffff:169.254.169.254 64:ff9b::a00:1 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: 3fff::1
fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 5f00::1
"""


# -- what works ------------------------------------------------------------------------------------------------


async def test_bytes_are_fetched_whole(server: Server) -> None:
    server.scripts["/a.png?size=2&q=%20"] = answer(PNG)
    assert await media(server).fetch(f"{server.url}/a.png?size=2&q=%20#part", WHERE, "images") == PNG


async def test_chunks_are_joined(server: Server) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png; x=y\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.scripts["/"] = head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert await media(server).fetch(server.url, WHERE, "images") == b"abcde"


async def test_nothing_of_the_caller_goes_along(server: Server) -> None:
    server.scripts["/"] = answer(PNG)
    await media(server).fetch(server.url, WHERE, "images")
    names = {line.partition(":")[0] for line in server.asked[0][1:] if line}
    assert names == {"Host", "User-Agent", "Accept", "Accept-Encoding", "Connection"}


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_redirects_to_listed_hosts_are_followed(server: Server, inside: Server, status: str) -> None:
    server.scripts |= {"/a": moved("/b", status), "/b": moved(f"{inside.url}/", status)}
    inside.scripts["/"] = answer(PNG)
    assert await media(server, inside).fetch(f"{server.url}/a", WHERE, "images") == PNG


# -- where to --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://0x7f000001:{port}/",
        "http://2130706433:{port}/",
        "http://0177.0.0.1:{port}/",
        "http://127.1:{port}/",
        "http://0:{port}/",
        "http://169.254.169.254/x",
        "https://127.0.0.1:{port}/",
        "//127.0.0.1:{port}/",
        "file:///etc/hostname",
        "ftp://127.0.0.1:{port}/",
        "gopher://127.0.0.1:{port}/",
        "data:image/png;base64,AAAA",
        "",
        "http://",
        "http://[",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://" + "a" * 5000,
    ],
)
async def test_nothing_is_fetched_from_hosts_that_are_not_listed(inside: Server, url: str) -> None:
    for remote in (RemoteMedia(()), RemoteMedia(parse_origins(["images.example.com", "http://images.example.com"]))):
        assert await refusal(remote, url.format(port=inside.port)) == FORBIDDEN
    assert inside.connections == 0


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "0x7f000001", "2130706433", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0"],
)
async def test_an_address_inside_is_refused_even_when_its_name_is_listed(inside: Server, host: str) -> None:
    """However it is written, a resolver knows what it means."""
    remote = RemoteMedia(parse_origins([f"http://{host}:{inside.port}"]))
    assert await refusal(remote, f"http://{host}:{inside.port}/") == FORBIDDEN
    assert inside.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "{listed}@127.0.0.1:{port}/",
        "http://127.0.0.1:{port}\\@images.example.com/",
        "http://images.example.com@127.0.0.1:{port}/",
        "http://127.0.0.1:{port}/\r\nX: y",
        "http://127.0.0.1:{port}/a b",
        " http://127.0.0.1:{port}/",
        "http://127.0.0.1:{port}/\u00e9",
        "http://127.0.0.\uff11:{port}/",
        "http://127.0.0.1:{port}\t/",
        "http://user:word@127.0.0.1:{port}/",
    ],
)
async def test_a_url_that_two_readers_read_in_two_ways_is_refused(server: Server, url: str) -> None:
    """Though its host is listed, as one of them reads it."""
    assert await refusal(media(server), url.format(port=server.port, listed=server.url)) == FORBIDDEN
    assert server.connections == 0


@pytest.mark.parametrize(
    "location", ["{inside}/", "file:///etc/hostname", "//127.0.0.1:{port}/", "http://[::1]/", "gopher://x/"]
)
@pytest.mark.parametrize("status", ["302 Found", "307 Temporary"])
async def test_a_redirect_reaches_no_other_host(server: Server, inside: Server, location: str, status: str) -> None:
    server.scripts["/"] = moved(location.format(inside=inside.url, port=inside.port), status)
    assert await refusal(media(server), f"{server.url}/") == FORBIDDEN
    assert inside.connections == 0


async def test_every_hop_is_resolved_and_checked_anew(server: Server, inside: Server) -> None:
    """Both hosts are listed; the second one's address is inside by then."""
    server.scripts["/"] = moved(f"http://second.example.com:{inside.port}/")
    listed = parse_origins([f"http://first.example.com:{server.port}", f"http://second.example.com:{inside.port}"])
    known = {"first.example.com": ["127.0.0.1"], "second.example.com": ["10.0.0.1"]}

    async def resolve(host: str, port: int) -> Sequence[str]:
        return known[host]

    remote = RemoteMedia(listed, may_reach=or_here, resolve=resolve)
    assert await refusal(remote, f"http://first.example.com:{server.port}/") == FORBIDDEN
    assert (server.connections, inside.connections) == (1, 0)


async def test_a_name_that_answers_differently_a_moment_later_changes_nothing(server: Server) -> None:
    """It is asked once for a hop, and the connection goes to what was checked."""
    server.scripts["/"] = answer(PNG)
    answers = iter([["127.0.0.1"], ["10.0.0.1"], ["10.0.0.1"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(answers)

    listed = parse_origins([f"http://rebind.example.com:{server.port}"])
    remote = RemoteMedia(listed, may_reach=or_here, resolve=resolve)
    url = f"http://rebind.example.com:{server.port}/"
    assert await remote.fetch(url, WHERE, "images") == PNG
    assert server.asked[0][1] == f"Host: rebind.example.com:{server.port}"
    assert await refusal(remote, url) == FORBIDDEN


@pytest.mark.parametrize("addresses", [["93.184.216.34", "10.0.0.1"], ["::ffff:10.0.0.1"], [], ["fe80::1%eth0"]])
async def test_one_address_inside_refuses_the_name(addresses: list[str]) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    remote = RemoteMedia(parse_origins(["images.example.com"]), resolve=resolve)
    assert await refusal(remote, "https://images.example.com/") == FORBIDDEN


async def test_an_unknown_name_reads_like_a_forbidden_one() -> None:
    remote = RemoteMedia(parse_origins(["*.invalid"]))
    assert await refusal(remote, "https://nowhere.invalid/") == FORBIDDEN
    assert await refusal(remote, f"https://{'a' * 70}.invalid/") == FORBIDDEN


@pytest.mark.parametrize("address", INSIDE.split())
def test_addresses_inside_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "::ffff:8.8.8.8", "2606:4700::1111", "2a00:1450::1"])
def test_addresses_in_the_internet_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


# -- what comes back -------------------------------------------------------------------------------------------


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"x" * 4096)
        await writer.drain()


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


TOO_LARGE = "the URL leads to more than 100000 bytes"
NO_HTTP = "the URL could not be read: its server does not answer as HTTP servers do"
NO_IMAGE = "the URL must lead to image/\u2026 or application/octet-stream or binary/octet-stream"
COMPRESSED = "the URL's server compressed what it was asked to send plain"
HUGE = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 10737418240\r\n\r\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (endless, TOO_LARGE),
        (HUGE, TOO_LARGE),
        (answer(b"x" * 100_001), TOO_LARGE),
        (trickle, "the URL was not read within 1 s"),
        (silence, "the URL was not read within 1 s"),
        (endless_head, NO_HTTP),
        (b"", NO_HTTP),
        (b"SSH-2.0-OpenSSH\r\n", NO_HTTP),
        (answer(PNG)[:-10], NO_HTTP),
        (moved("http://["), NO_HTTP),
        (answer(b"gone", status="404 Not Found"), "the URL's server answered 404"),
        (answer(PNG, status="206 Partial Content"), "the URL's server answered 206"),
        (
            answer(b"<p>", "text/html"),
            "the URL must lead to image/\u2026 or application/octet-stream or binary/octet-stream",
        ),
        (
            answer(PNG, "image/png", "Content-Encoding: gzip"),
            "the URL's server compressed what it was asked to send plain",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_an_answer_that_is_none_is_told(server: Server, script: Script, said: str) -> None:
    server.scripts["/"] = script
    started = time.monotonic()
    assert await refusal(media(server, max_bytes=100_000, timeout_s=1), f"{server.url}/") == said
    assert time.monotonic() - started < 3


async def test_as_many_bytes_as_allowed_are_read(server: Server) -> None:
    server.scripts["/"] = answer(b"x" * 100_000)
    assert len(await media(server, max_bytes=100_000).fetch(f"{server.url}/", WHERE, "images")) == 100_000


async def test_redirects_end(server: Server) -> None:
    server.scripts["/"] = moved("/")
    assert await refusal(media(server), f"{server.url}/") == "the URL redirects more than 3 times"
    assert server.connections == 4


async def test_a_closed_port_is_told(server: Server) -> None:
    remote = media(Server(port=1))
    assert await refusal(remote, "http://127.0.0.1:1/") == NO_HTTP


async def test_errors_show_nothing_of_the_url(server: Server) -> None:
    server.scripts["/?token=canary"] = answer(b"", status="500 Oops")
    assert "canary" not in await refusal(media(server), f"{server.url}/?token=canary")
    assert "canary" not in await refusal(media(server), "https://canary.example.com/")


async def test_few_are_fetched_at_once(server: Server) -> None:
    now, most = 0, 0

    async def slow(writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1
        writer.write(answer(PNG))

    server.scripts["/"] = slow
    remote = media(server)
    await asyncio.gather(*(remote.fetch(f"{server.url}/", WHERE, "images") for _ in range(40)))
    assert most <= remote_media.AT_ONCE


# -- TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of media.example.com, with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=media.example.com", "-addext", "subjectAltName=DNS:media.example.com"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(made, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key").read_text() + (folder / "crt").read_text())
    yield both


@pytest.mark.parametrize(
    ("host", "is_trusted", "said"),
    [("media.example.com", True, None), ("other.example.com", True, NO_HTTP), ("media.example.com", False, NO_HTTP)],
)
async def test_a_server_is_believed_by_its_certificate(
    certificate: Path, host: str, is_trusted: bool, said: str | None
) -> None:
    here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    here.load_cert_chain(certificate)
    trust = ssl.create_default_context(cafile=str(certificate)) if is_trusted else None
    server = Server(scripts={"/": answer(PNG)})

    async def resolve(name: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=here) as listening:
        port = listening.sockets[0].getsockname()[1]
        remote = RemoteMedia(parse_origins([f"*.example.com:{port}"]), may_reach=or_here, resolve=resolve, tls=trust)
        reading = remote.fetch(f"https://{host}:{port}/", WHERE, "images")
        if said is None:
            assert await reading == PNG
        else:
            with pytest.raises(InvalidInput, match=said):
                await reading


# -- the list of hosts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "origin"),
    [
        ("Images.Example.com", Origin("https", "images.example.com", 443)),
        ("images.example.com:8443", Origin("https", "images.example.com", 8443)),
        ("http://images.example.com", Origin("http", "images.example.com", 80)),
        ("*.example.com", Origin("https", "*.example.com", 443)),
        ("[2606:4700::1111]", Origin("https", "2606:4700::1111", 443)),
    ],
)
def test_hosts_are_listed_as_operators_write_them(word: str, origin: Origin) -> None:
    assert parse_origins([word]) == (origin,)


@pytest.mark.parametrize(
    "word", ["", "*", "*.*", "ftp://a.com", "a.com/path", "a b", "u@a.com", "a.com:0", "a.com:99999", ".com"]
)
def test_what_is_no_host_is_named(word: str) -> None:
    with pytest.raises(ValueError, match="is no host"):
        parse_origins([word])


@pytest.mark.parametrize(
    ("host", "is_covered"),
    [
        ("a.example.com", True),
        ("a.b.example.com", True),
        ("example.com", False),
        ("badexample.com", False),
        ("a.example.com.evil.com", False),
        ("a.example.com.", False),
    ],
)
def test_a_star_stands_for_names_below_a_host(host: str, is_covered: bool) -> None:
    assert parse_origins(["*.example.com"])[0].covers("https", host, 443) is is_covered
