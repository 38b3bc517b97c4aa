"""A server that only keeps what it is asked: it answers any encode well enough for the SDK to go on."""

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgpack


class Recorder(ThreadingHTTPServer):
    """`requests` are whole, as they came: request line, headers, empty line, body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[bytes] = []
        self.busy = 0  # so many answers are 503 before the next good one

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def do_GET(self) -> None:
        self._keep(b"")
        worker = {"name": "w", "gpu": "", "healthy": True}
        self._answer(
            200,
            json.dumps(
                {"type": "gateway", "status": "ok", "models": [], "cluster": {}, "workers": [worker], "name": "m"}
            ).encode(),
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._keep(body)
        if self.server.busy:
            self.server.busy -= 1
            error = {"error": {"code": "MODEL_LOADING", "message": "loading"}}
            self._answer(503, json.dumps(error).encode(), {"Retry-After": "0.1"})
            return
        items = [{"dense": {"dims": 2, "dtype": "float32", "values": _array(0.6, 0.8)}} for _ in _items(body)]
        self._answer(200, msgpack.packb({"model": "m", "items": items}), {"Content-Type": "application/msgpack"})

    def _keep(self, body: bytes) -> None:
        lines = [self.requestline, *(f"{name}: {value}" for name, value in self.headers.items())]
        self.server.requests.append("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test says what matters."""


def _items(body: bytes) -> list[Any]:
    items: list[Any] = msgpack.unpackb(body, strict_map_key=False)["items"]
    return items


def _array(*values: float) -> dict[bytes, Any]:
    data = struct.pack(f"<{len(values)}f", *values)
    return {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [len(values)], b"data": data}
