"""A hub on this machine that speaks as much of the Hugging Face hub's protocol as a snapshot download needs."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`files` of the one repo it has, `org/model`; `refuse` answers everything with (status, the hub's error code)."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)  # sizes that are not those of `files`
    refuse: tuple[int, str] | None = None
    pause: threading.Event | None = None  # answers of weights stop half way until it is set
    halfway: threading.Event = field(default_factory=threading.Event)  # one of them has
    asked: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)  # those of `asked` whose content was sent, if only in part
    agents: set[str] = field(default_factory=set)  # what those who asked said of themselves


@contextmanager
def serve() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    server.hub = hub  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        return hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append(path)
        self.hub.agents.add(self.headers.get("User-Agent", ""))
        if self.hub.refuse is not None:
            status, code = self.hub.refuse
            self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})
        elif re.fullmatch(rf"/api/models/org/model/tree/{COMMIT}/?", path):
            self._answer(200, json.dumps([self._listed(name) for name in self.hub.files]).encode())
        elif re.fullmatch(r"/api/models/org/model(/revision/\w+)?", path):
            self._answer(200, json.dumps({"id": "org/model", "sha": COMMIT}).encode())
        elif path.startswith(f"/org/model/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/org/model/resolve/{COMMIT}/")
            content = self.hub.files[name]
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            size = self.hub.declared.get(name, len(content))
            self._answer(200, content, {**headers, "Content-Length": str(size)})
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no such repo"})

    def _listed(self, name: str) -> dict[str, object]:
        content = self.hub.files[name]
        size = self.hub.declared.get(name, len(content))
        return {"type": "file", "path": name, "size": size, "oid": hashlib.sha1(content).hexdigest()}

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.hub.fetched.append(self.path.partition("?")[0].rpartition("/")[2])
            self._write(content)

    def _write(self, content: bytes) -> None:
        half = len(content) // 2
        self.wfile.write(content[:half])
        if self.hub.pause is not None and self.path.endswith(".safetensors"):
            self.wfile.flush()
            self.hub.halfway.set()
            self.hub.pause.wait(30)
        self.wfile.write(content[half:])

    def log_message(self, format: str, *args: object) -> None:
        pass
