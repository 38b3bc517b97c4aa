"""The whole ASGI application under uvicorn, as `./shoal gateway` runs it: both handlers, real sockets, own process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import redis

from catalog.snapshot import Model, Snapshot
from project.cli import embedded, processes, services
from protocol import names
from tests.gateway.conftest import FAKE
from tests.gateway.double import WorkerDouble, silent

ROOT = Path(__file__).resolve().parents[2]
PATH = "/v1/encode/acme/fake"


@pytest.fixture(scope="module")
def served_redis(start_redis: Callable[[embedded.Binary], str]) -> str:
    return start_redis(embedded.from_wheel())


@pytest.fixture(scope="module")
def served(served_redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway with one fake model."""
    data = tmp_path_factory.mktemp("served")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "project.settings.gateway",
        "SHOAL_DATA": str(data),
        "SHOAL_REDIS_URL": served_redis,
        "SHOAL_MAX_BODY_BYTES": str(1 << 20),
        "SHOAL_PROVISION_WAIT_S": "2",
    }
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], check=True, cwd=ROOT, env=environment)
    _publish_catalog(served_redis)
    port = processes.free_port("127.0.0.1")
    command = services.gateway_launch("127.0.0.1", port).command
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    url = f"http://127.0.0.1:{port}"
    _wait_for(url, process)
    yield url
    process.terminate()
    assert process.wait(timeout=15) in (0, -15)


@pytest.fixture
def worker(served: str, served_redis: str, tmp_path: Path) -> Iterator[WorkerDouble]:
    double = WorkerDouble(served_redis, tmp_path, models=(FAKE,)).start()
    yield double
    double.stop()


def _publish_catalog(url: str) -> None:
    """Newer than what a gateway with an empty database would publish by itself."""
    with redis.Redis.from_url(url) as client:
        client.set(names.CATALOG, Snapshot(2**40, (Model(FAKE),)).to_json())
        client.set(names.CATALOG_VERSION, 2**40)


def _wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    ends = time.monotonic() + 30
    while True:
        assert process.poll() is None, "the gateway ended"
        assert time.monotonic() < ends
        try:
            if httpx.get(f"{url}/healthz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)


def test_call_is_answered(served: str, worker: WorkerDouble) -> None:
    response = httpx.post(served + PATH, json={"items": ["river stones"]})
    assert response.status_code == 200
    assert response.json()["usage"] == {"input_tokens": 2}


def test_stock_django_serves_the_rest(served: str) -> None:
    assert httpx.get(f"{served}/admin/login/").status_code == 200
    assert "swagger" in httpx.get(f"{served}/docs").text.lower()
    assert httpx.get(f"{served}/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui.css").status_code == 200
    assert httpx.get(f"{served}/", follow_redirects=True).status_code == 200


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/embed"])
def test_other_apis_paths_are_hot(served: str, path: str) -> None:
    response = httpx.post(served + path, json={})
    assert (response.status_code, response.headers["X-SIE-Error-Code"]) == (400, "INVALID_INPUT")


def test_docs_load_nothing_from_elsewhere(served: str) -> None:
    page = httpx.get(f"{served}/docs").text
    assert "//cdn" not in page
    assert 'src="http' not in page


def test_schema_has_the_hot_routes(served: str) -> None:
    paths = httpx.get(f"{served}/openapi.json").json()["paths"]
    assert {
        "/v1/encode/{model}",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/tasks",
        "/v1/tasks/{task_id}",
        "/healthz",
        "/readyz",
        "/health",
        "/metrics",
    } <= set(paths)
    assert set(paths["/v1/tasks/{task_id}"]) == {"get", "delete"}


@pytest.mark.parametrize("size", [(1 << 20) + 1, 40 << 20])
def test_large_upload_gets_its_answer(served: str, size: int) -> None:
    """The client is still sending when the answer comes; a reset would hide it."""
    response = httpx.post(served + PATH, content=b"x" * size, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "INPUT_TOO_LONG"


def test_large_upload_without_a_length_gets_its_answer(served: str) -> None:
    response = httpx.post(served + PATH, content=(b"x" * 65536 for _ in range(100)))
    assert response.status_code == 413


@pytest.mark.parametrize("path", ["/admin/login/", "/api/models/", "/docs", "/nothing"])
def test_large_upload_to_a_page_is_refused(served: str, path: str) -> None:
    response = httpx.post(served + path, content=(b"x" * 65536 for _ in range(100)))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "INPUT_TOO_LONG"


def test_page_of_the_stock_handler_reads_a_body(served: str) -> None:
    """Without the token of its form, which only a body that was read can hold, the login is refused."""
    with httpx.Client(base_url=served) as client:
        page = client.get("/admin/login/").text
        token = page.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
        form = {"csrfmiddlewaretoken": token, "username": "nobody", "password": "x"}
        assert client.post("/admin/login/", data=form).status_code == 200
        assert client.post("/admin/login/", data={}).status_code == 403


def test_client_that_offers_http2_is_answered(served: str, worker: WorkerDouble) -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQ"}
    with httpx.Client(base_url=served, headers=offer) as client:
        for _ in range(2):
            assert client.post(PATH, json={"items": ["a"]}).status_code == 200


def test_head_that_does_not_end_is_refused(served: str) -> None:
    assert httpx.get(f"{served}/healthz", headers={"X": "a" * 100_000}).status_code == 431


def test_connection_is_kept_after_errors(served: str, worker: WorkerDouble) -> None:
    with httpx.Client(base_url=served) as client:
        for _ in range(3):
            assert client.post(PATH, content=b"not json").status_code == 400
            assert client.get("/v1/nothing").status_code == 404
            assert client.post(PATH, json={"items": ["a"]}).status_code == 200


def test_client_that_hangs_up_cancels_its_request(served: str, worker: WorkerDouble) -> None:
    worker.answer = silent
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(served + PATH, json={"items": ["a"]}, timeout=0.3)
    ends = time.monotonic() + 3
    while worker.received[0].request.id not in worker.cancelled():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_unknown_pages_are_404(served: str) -> None:
    assert httpx.get(f"{served}/nothing").status_code == 404


def test_processes_share_their_numbers(tmp_path: Path) -> None:
    """S096: with a folder to share, each of several processes shows the sum of all, the ended ones included."""
    count = "from inference import metrics; metrics.CALLS.labels('encode', 'm', 'ok').inc(5)"
    show = (
        f"{count}; from inference.fleet import Fleet; import json;"
        "print(json.dumps(metrics.exposition(Fleet(), ()).decode()))"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(3):
        subprocess.run([sys.executable, "-c", count], check=True, cwd=ROOT, env=environment)
    shown = subprocess.run(
        [sys.executable, "-c", show], check=True, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert 'shoal_calls_total{model="m",outcome="ok",primitive="encode"} 20.0' in json.loads(shown.stdout)
