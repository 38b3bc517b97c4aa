"""Two workers and a model that takes its time: what a second worker brings, and what the death of one costs."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench import load
from bench.outcome import Outcome
from bench.system import ROOT, Serving, System
from bench.wire import DIALECTS
from project.celery import worker_argv, worker_environment
from workers.families.fake import vector

MODEL = "shoal-bench/pair"
DIMS = 32
FORWARD_S, AT_ONCE = 0.1, 4
CLIENTS = 48
ENTRY = {
    "id": MODEL,
    "description": "Takes its time, for few items at once.",
    "family": "fake",
    "primitives": ["encode"],
    "outputs": ["dense"],
    "dims": {"dense": DIMS},
    "max_items": AT_ONCE,
    "load": {"load_s": 0.2, "forward_s": FORWARD_S},
}
TEXTS = [f"text {number}" for number in range(500)]
JOINER = "joiner"
JOIN_S = 60.0


@contextmanager
def serving(system: System, workers: int, settings: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """All workers have run the model."""
    catalog = system.folder()
    (catalog / "pair.yaml").write_text(json.dumps(ENTRY))
    settings = {"SHOAL_CATALOG": str(catalog), "SHOAL_DEVICE": "cpu", **(settings or {})}
    with system.serve(settings, "--workers", str(workers)) as product:
        product.warm(MODEL)
        while sum(_has_run(beat) for beat in product.beats()) < workers:
            run(product, 2.0)
        yield product


def _has_run(beat: Mapping[str, Mapping[str, int]]) -> bool:
    return beat["counters"]["items"] > 0


def run(product: Serving, seconds: float) -> Outcome:
    """Always more at hand than one worker holds."""
    dialect = DIALECTS["native"]
    requests = [dialect.request(product.url, MODEL, text) for text in TEXTS]

    def check(index: int, status: int, body: bytes) -> str | None:
        if status != 200:
            return f"{TEXTS[index]}: status {status}: {body[:200]!r}"
        found = dialect.vectors(body)
        same = len(found) == 1 and np.allclose(found[0], vector(TEXTS[index], DIMS), atol=1e-3)
        return None if same else f"{TEXTS[index]}: not its vector"

    return load.run(product.url, requests, check, connections=CLIENTS, seconds=seconds)


@contextmanager
def joining(product: Serving, folder: Path) -> Iterator[float]:
    """Another worker; gives the moment at which it says that it is ready."""
    log = folder / "joiner.log"
    environment = {**os.environ, **product.environment, "SHOAL_OFFLINE": "1", "SHOAL_DEVICE": "cpu"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *worker_argv(JOINER)],
            cwd=ROOT,
            env=worker_environment(JOINER, environment),
            stdout=output,
            stderr=output,
        )
    try:
        given_up = time.monotonic() + JOIN_S
        while " ready." not in log.read_text():
            if process.poll() is not None or time.monotonic() > given_up:
                raise RuntimeError(f"the worker did not start: {log.read_text()[-500:]}")
            time.sleep(0.02)
        yield time.monotonic()
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def rabbitmq() -> Iterator[str | None]:
    """A virtual host of the machine's RabbitMQ; None where there is none."""
    control = shutil.which("rabbitmqctl")
    vhost = f"shoal-bench-{uuid.uuid4().hex[:12]}"
    if control is None or _control(control, "add_vhost", vhost):
        yield None
        return
    try:
        _control(control, "set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        yield f"amqp://guest:guest@127.0.0.1:5672/{vhost}"
    finally:
        _control(control, "delete_vhost", vhost)


def _control(control: str, *arguments: str) -> int:
    return subprocess.run([control, *arguments], capture_output=True, timeout=60, check=False).returncode
