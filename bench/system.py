"""The running product as a measure sees it: `./shoal serve` in a data folder of its own, driven from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import redis

from project.cli.processes import free_port
from protocol import names

ROOT = Path(__file__).resolve().parent.parent
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
READY_S = 180.0
STOP_S = 60.0


class DidNotStart(Exception):
    """`serve` ended or stayed silent; the message holds its last lines."""


class Serving:
    """One `./shoal serve`, from its start to READY and to its end."""

    def __init__(self, data: Path, settings: Mapping[str, str], *options: str, flower: bool = False) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        more = ("--flower-port", str(free_port())) if flower else ("--no-flower",)
        self._lines: list[str] = []
        self._is_ready = threading.Event()
        started = time.monotonic()
        command = [sys.executable, str(ROOT / "shoal"), "serve", "--port", str(self.port), "--data", str(data)]
        self.process = subprocess.Popen(
            [*command, *more, *options],
            env={**_clean_environment(), **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._is_ready.wait(READY_S) or "READY http" not in self.output:
            self.stop()
            raise DidNotStart("\n".join(self._lines[-15:]) or "it said nothing")
        self.ready_s = time.monotonic() - started

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.rstrip())
            if "READY http" in line:
                self._is_ready.set()
        self._is_ready.set()  # it ended; the starter looks

    @property
    def output(self) -> str:
        return "\n".join(self._lines)

    def stop(self, number: signal.Signals = signal.SIGINT) -> float:
        """End it as Ctrl-C does, or with another signal; seconds it took."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            for process in self.tree():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            raise
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return time.monotonic() - started

    def tree(self) -> list[psutil.Process]:
        """The launcher and all below it, as of now."""
        try:
            launcher = psutil.Process(self.process.pid)
            return [launcher, *launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def pid(self, name: str) -> int:
        """Of a process that `serve` keeps: gateway, worker, valkey."""
        return next(int(process["pid"]) for process in self._record()["processes"] if process["name"] == name)

    def cpu_s(self, name: str) -> float:
        """CPU that this process has used, without its children."""
        times = psutil.Process(self.pid(name)).cpu_times()
        return float(times.user + times.system)

    def beats(self) -> list[dict[str, Any]]:
        """What each live worker last said of itself."""
        with self.redis() as client:
            ids = [worker.decode() for worker in client.zrange(names.WORKERS, 0, -1)]
            beats = [client.get(names.worker(worker)) for worker in ids]
        return [json.loads(beat) for beat in beats if beat is not None]

    def counters(self) -> Counter[str]:
        """The workers' own counts, summed over live workers."""
        total: Counter[str] = Counter()
        for beat in self.beats():
            total.update(beat["counters"])
        return total

    def next_beat(self) -> None:
        """Until every worker has spoken of the time after this call; what it says may be half a second old."""
        after = time.time() + 0.5
        with self.redis() as client:
            while not all(beat > after for _, beat in client.zrange(names.WORKERS, 0, -1, withscores=True)):
                time.sleep(0.1)

    def engine_pids(self) -> list[int]:
        return [engine["pid"] for beat in self.beats() for engine in beat["engines"]]

    def redis(self) -> "redis.Redis":
        client: redis.Redis = redis.Redis.from_url(self.environment["SHOAL_REDIS_URL"])
        return client

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to take part in it."""
        return dict(self._record()["environment"])

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return json.loads(response.read())

    def warm(self, model: str = MODEL, patience_s: float = 120.0) -> None:
        """Until `model` answers, coming back as often as it is told to."""
        body = json.dumps({"items": [{"text": "warm"}]}).encode()
        deadline = time.monotonic() + patience_s
        while True:
            request = urllib.request.Request(
                f"{self.url}/v1/encode/{model}", body, {"Content-Type": "application/json"}
            )
            try:
                urllib.request.urlopen(request, timeout=patience_s).close()
                return
            except urllib.error.HTTPError as error:
                retry_after = error.headers["Retry-After"]
                if retry_after is None or time.monotonic() > deadline:
                    raise DidNotStart(f"{model}: {error.read().decode()}") from None
                error.close()
                time.sleep(float(retry_after))

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.data / "run" / "serve.json").read_text())
        return record


class System:
    """Where measures get their running products from. `shared` has the default configuration and lives on between
    measures; what needs another, or breaks it, serves its own."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._shared: Serving | None = None
        self._count = 0

    def shared(self) -> Serving:
        if self._shared is None or self._shared.process.poll() is not None:
            self._shared = self._start({})
        return self._shared

    @contextlib.contextmanager
    def serve(self, settings: Mapping[str, str] | None = None, *options: str) -> Iterator[Serving]:
        """A product of its own, ended when the block ends; the shared one ends first, to have the machine alone."""
        self.close()
        serving = self._start(settings or {}, *options)
        try:
            yield serving
        finally:
            serving.stop()

    def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.stop()

    def folder(self) -> Path:
        """A new empty folder."""
        self._count += 1
        folder = self.scratch / str(self._count)
        folder.mkdir(parents=True)
        return folder

    def _start(self, settings: Mapping[str, str], *options: str) -> Serving:
        return Serving(self.folder(), {"SHOAL_OFFLINE": "1", **settings}, *options)


def _clean_environment() -> dict[str, str]:
    """This process's, without settings that would change what is measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "DJANGO_"))}
