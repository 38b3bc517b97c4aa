"""The lean handler: body limits, clients that leave, errors nobody foresaw, no thread and no database."""

import asyncio
import logging
import threading
from typing import Any

import httpx
import pytest

from inference.lean import LeanHandler
from tests.gateway.conftest import Setup, limits, until
from tests.gateway.double import WorkerDouble, silent

PATH = "/v1/encode/acme/fake"


class Connection:
    """One ASGI request driven by hand: the test decides when which part of the body arrives, and when it hangs up."""

    def __init__(self, path: str, headers: dict[str, str], method: str = "POST") -> None:
        named = [(name.lower().encode(), value.encode()) for name, value in {"host": "testserver", **headers}.items()]
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": named,
            "client": ("127.0.0.1", 1),
            "server": ("testserver", 80),
        }
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def body(self, content: bytes, more: bool = False) -> None:
        self.incoming.put_nowait({"type": "http.request", "body": content, "more_body": more})

    def leave(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None


@limits(max_body_bytes=1000)
async def test_declared_size_is_refused_before_a_byte_is_read(app: LeanHandler) -> None:
    connection = Connection(PATH, {"content-length": "1001"})
    task = asyncio.create_task(app(connection.scope, connection.receive, connection.send))
    await until(lambda: connection.status == 413)
    assert b'"code":"INPUT_TOO_LONG"' in connection.sent[1]["body"]
    assert (b"connection", b"close") in connection.sent[0]["headers"]
    connection.body(b"x" * 1001)
    await asyncio.wait_for(task, 1)


@limits(max_body_bytes=1000)
async def test_undeclared_size_is_refused_as_soon_as_it_is_passed(app: LeanHandler) -> None:
    connection = Connection(PATH, {"transfer-encoding": "chunked"})
    task = asyncio.create_task(app(connection.scope, connection.receive, connection.send))
    connection.body(b"x" * 600, more=True)
    connection.body(b"x" * 600, more=True)
    await until(lambda: connection.status == 413)
    connection.leave()
    await asyncio.wait_for(task, 1)


async def test_text_routes_take_less_than_others(client: httpx.AsyncClient, setup: Any) -> None:
    """S037: 20 MB of text are refused by their size, before anybody parses them."""
    response = await client.post("/v1/embeddings", content=b" " * (20 << 20))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "input_too_long"


async def test_body_in_parts_is_put_together(app: LeanHandler, worker: WorkerDouble) -> None:
    connection = Connection(PATH, {"transfer-encoding": "chunked"})
    connection.body(b'{"items":', more=True)
    connection.body(b'["in parts"]}')
    await app(connection.scope, connection.receive, connection.send)
    assert connection.status == 200
    assert worker.received[0].payload.items == [{"text": "in parts"}]


async def test_client_that_leaves_cancels_its_request(app: LeanHandler, worker: WorkerDouble) -> None:
    worker.answer = silent
    connection = Connection(PATH, {"content-length": "17"})
    connection.body(b'{"items": ["a"]} ')
    task = asyncio.create_task(app(connection.scope, connection.receive, connection.send))
    await until(lambda: worker.received)
    connection.leave()
    await asyncio.wait_for(task, 1)
    await until(lambda: worker.cancelled() == {worker.received[0].request.id})
    assert connection.sent == []
    assert app.gateway is not None
    assert len(app.gateway.mailbox) == 0


async def test_client_that_leaves_while_sending_is_no_error(app: LeanHandler) -> None:
    connection = Connection(PATH, {"content-length": "100"})
    connection.body(b"half", more=True)
    connection.leave()
    await app(connection.scope, connection.receive, connection.send)
    assert connection.sent == []


async def test_cancelled_server_task_is_not_mistaken_for_a_client(app: LeanHandler, worker: WorkerDouble) -> None:
    worker.answer = silent
    connection = Connection(PATH, {"content-length": "17"})
    connection.body(b'{"items": ["a"]} ')
    task = asyncio.create_task(app(connection.scope, connection.receive, connection.send))
    await until(lambda: worker.received)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_unforeseen_error_is_logged_once_and_answered(
    client: httpx.AsyncClient, setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.catalog.current = None
    with caplog.at_level(logging.INFO):
        response = await client.post(PATH, json={"items": ["a secret text"]})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "INTERNAL_ERROR"
    assert "NoneType" not in response.text
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(records) == 1
    assert records[0].__dict__["request_id"] == response.headers["x-sie-request-id"]
    assert "a secret text" not in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", PATH, 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("POST", "/v1/tasks/x", 405, "GET, DELETE"),
        ("PUT", "/v1/tasks", 405, "POST"),
        ("GET", "/v1/nothing", 404, None),
        ("POST", "/v1/chat/completions", 404, None),
        ("POST", "/v1/encode/", 404, None),
        ("GET", "/v1/", 404, None),
    ],
)
async def test_wrong_method_and_path_get_an_envelope(
    client: httpx.AsyncClient, method: str, path: str, status: int, allow: str | None
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == ("NOT_FOUND" if status == 404 else "METHOD_NOT_ALLOWED")
    assert response.headers.get("allow") == allow


async def test_answer_has_a_length(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models")
    assert int(response.headers["content-length"]) == len(response.content)


async def test_head_is_get(client: httpx.AsyncClient) -> None:
    assert (await client.head("/healthz")).status_code == 200


async def test_foreign_host_is_refused_but_for_probes(client: httpx.AsyncClient) -> None:
    """A page whose name was pointed at this machine must not reach models through a visitor's browser."""
    response = await client.get("/v1/models", headers={"Host": "evil.example"})
    assert response.status_code == 400
    assert (await client.get("/healthz", headers={"Host": "10.0.0.7"})).status_code == 200


async def test_gateway_that_cannot_start_stops_the_server() -> None:
    def fail() -> Any:
        raise ValueError("no such setting")

    connection = Connection("/", {})
    connection.incoming.put_nowait({"type": "lifespan.startup"})
    await LeanHandler(fail)({"type": "lifespan"}, connection.receive, connection.send)
    assert [message["type"] for message in connection.sent] == ["lifespan.startup.failed"]


async def test_calls_cut_off_by_a_shutdown_are_cancelled(setup: Setup, worker: WorkerDouble) -> None:
    worker.answer = silent
    handler = LeanHandler(setup.make)
    async with handler.running() as gateway:
        await until(lambda: gateway.mailbox.connected and gateway.publisher.connected)
        connection = Connection(PATH, {"content-length": "17"})
        connection.body(b'{"items": ["a"]} ')
        task = asyncio.create_task(handler(connection.scope, connection.receive, connection.send))
        await until(lambda: worker.received)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert worker.cancelled() == {worker.received[0].request.id}


async def test_query_that_is_no_text_is_400(app: LeanHandler) -> None:
    connection = Connection("/v1/models", {}, method="GET")
    connection.scope["query_string"] = b"\xff"
    await app(connection.scope, connection.receive, connection.send)
    assert connection.status == 400


async def test_query_of_too_many_fields_is_400(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/tasks/x?" + "&".join(f"a{number}=1" for number in range(2000)))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_INPUT")


@limits(receive_s=0.2)
async def test_trickled_body_is_given_up(app: LeanHandler) -> None:
    connection = Connection(PATH, {"transfer-encoding": "chunked"})
    task = asyncio.create_task(app(connection.scope, connection.receive, connection.send))
    for _ in range(10):
        connection.body(b" ", more=True)
        await asyncio.sleep(0.05)
    assert connection.status == 400
    connection.leave()
    await asyncio.wait_for(task, 1)


async def test_hot_routes_start_no_thread_and_use_no_database(client: httpx.AsyncClient, worker: WorkerDouble) -> None:
    """A database would be noticed: pytest-django fails a test without its mark that uses one."""
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(5):
        assert (await client.post(PATH, json={"items": ["a"]})).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200
    assert {thread.name for thread in threading.enumerate()} == before
