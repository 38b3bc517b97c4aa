"""Payloads that no broker takes: a disk without room for them, and sizes around every limit on the way."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.conftest import missing
from tests.service.faults.system import System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict
from tests.service.harness import Fleet, Gateway, Services, fake_model, plain_client
from workers.families.fake import vector

pytestmark = pytest.mark.heavy
MakeSystem = Callable[..., System]

LARGE = [f"{number} " + "x" * (2_000_000) for number in range(5)]  # too much for Redis, so it goes to a file
DISK = 64 << 20
TIMES = 6
COUNTS = (1, 5, 10)  # of texts of 2 MB; with ten more than the 16 MiB that RabbitMQ 4 takes in one message


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The blobs' folder, on a disk of its own that is soon full."""
    folder = tmp_path / "data" / "blobs"
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        missing(f"a disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(DISK + 1))
    return filler


def _encode(system: System, texts: list[str]) -> httpx.Response:
    url = f"{system.gateways[0].url}/v1/encode/{system.model.spec.model}"
    return httpx.post(url, json={"items": texts}, headers={"Accept": "application/json"}, timeout=60)


def _are_right(answer: httpx.Response, texts: list[str]) -> bool:
    found = [item["dense"]["values"] for item in answer.json()["items"]]
    return np.allclose(found, [vector(text, 8) for text in texts], atol=1e-5)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_full_disk_refuses_large_payloads_alone(make_system: MakeSystem, requests: int, disk: Path) -> None:
    """No broker has a part in it. Who was refused may come again when there is room; small calls notice nothing."""
    system = make_system()
    filler = _fill(disk)
    refused = [_encode(system, LARGE) for _ in range(TIMES)]
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {(503, "QUEUE_UNAVAILABLE")}
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
    assert list(disk.iterdir()) == [filler], "what did not fit was left behind"
    filler.unlink()
    answer = _encode(system, LARGE)
    assert answer.status_code == 200, answer.text[:200]
    assert _are_right(answer, LARGE)
    _fill(disk)
    traffic = Traffic(system, requests).start()
    traffic.finish()
    verdict = Verdict(traffic)
    assert verdict.refused == 0, verdict.summary()
    verdict.check()


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_payloads_of_every_size_are_answered_and_the_next_call_too(make_system: MakeSystem) -> None:
    """A broker's own limit is never met: what is large goes round it, and what is too large is said to be."""
    system = make_system()
    for count in COUNTS:
        texts = [f"{number} {'x' * 2_000_000}" for number in range(count)]
        answer = _encode(system, texts)
        assert answer.status_code == 200, answer.text[:200]
        assert _are_right(answer, texts)
    assert _encode(system, ["x" * 2_000_000] * 18).status_code == 413
    assert _encode(system, ["after"]).status_code == 200


def test_a_plain_clients_message_of_16_mib_is_answered(fleet: Fleet, stand_in: Gateway, services: Services) -> None:
    model = fake_model("fault/large")
    stand_in.serve(model)
    fleet.start()
    texts = [f"{number} " + "x" * ((2 << 20) - 2048) for number in range(8)]  # with all else just below 16 MiB
    arguments = {"model": model.spec.model, "items": texts}
    client = plain_client(services)
    found = client.send_task("shoal.encode", kwargs=arguments, queue="shoal").get(timeout=60)
    values = [item["dense"]["values"] for item in found["items"]]
    assert np.allclose(values, [vector(text, 8) for text in texts], atol=1e-5)
    client.close()
