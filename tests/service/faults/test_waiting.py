"""Whoever waits: for a Redis that is away, in many threads at once, and what is left of them afterwards."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from bench import load
from bench.wire import Native
from protocol import names
from tests.service.faults.system import RedisServer, System
from tests.service.faults.verdict import GRACE_S
from tests.service.harness import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
MakeSystem = Callable[..., System]

CALLS = 20
AWAY_S = 5.0
TIMEOUT_S = 12.0


def _encode(system: System, text: str) -> httpx.Response:
    url = f"{system.gateways[0].url}/v1/encode/{system.model.spec.model}"
    return httpx.post(url, json={"items": [text]}, headers={"Accept": "application/json"}, timeout=90)


def _in_flight(system: System) -> float:
    lines = httpx.get(f"{system.gateways[0].url}/metrics", timeout=10).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("shoal_calls_in_flight{"))


def _call_all(pool: ThreadPoolExecutor, system: System) -> list[httpx.Response]:
    return [future.result() for future in [pool.submit(_encode, system, f"call {n}") for n in range(CALLS)]]


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_replies_written_after_redis_was_away_reach_whoever_asks_again(
    make_system: MakeSystem, state: RedisServer
) -> None:
    """S104, written: a gateway cannot know what a new Redis lost, so it lets its callers ask again, at once."""
    system = make_system(forward_s=2.0, max_items=CALLS)
    assert _encode(system, "first").status_code == 200
    body = {"primitive": "encode", "model": system.model.spec.model, "items": [{"text": "task"}]}
    with ThreadPoolExecutor(CALLS) as pool:
        waiting = [pool.submit(_encode, system, f"call {number}") for number in range(CALLS)]
        task = httpx.post(f"{system.gateways[0].url}/v1/tasks", json=body, timeout=10).json()["id"]
        wait_until(lambda: _in_flight(system) >= CALLS, 10, "all calls waiting")
        state.kill()
        time.sleep(AWAY_S)
        state.start()
        back = time.monotonic()
        answers = [future.result() for future in waiting]
        assert time.monotonic() - back < AWAY_S, "nobody waits for the deadline"
        for answer in answers:
            assert answer.status_code == 200 or (answer.status_code == 503 and answer.headers["Retry-After"])
        wait_until(lambda: _encode(system, "again").status_code == 200, 20, "an answer")
        assert [answer.status_code for answer in _call_all(pool, system)] == [200] * CALLS
    found = httpx.get(f"{system.gateways[0].url}/v1/tasks/{task}?wait=20", timeout=60).json()
    assert found["state"] == "succeeded", "its result was written after Redis was back"
    assert _in_flight(system) == 0


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_replies_never_written_end_calls_at_their_deadline(make_system: MakeSystem, state: RedisServer) -> None:
    """S104, never: a Redis that stays away ends every call by its deadline and holds no place of it."""
    system = make_system(settings={"SHOAL_REQUEST_TIMEOUT_S": TIMEOUT_S})
    assert _encode(system, "first").status_code == 200
    for worker in system.workers:
        worker.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(CALLS) as pool:
        started = time.monotonic()
        waiting = [pool.submit(_encode, system, f"call {number}") for number in range(CALLS)]
        wait_until(lambda: _in_flight(system) >= CALLS, 10, "all calls waiting")
        state.kill()
        answers = [future.result() for future in waiting]
        assert time.monotonic() - started < TIMEOUT_S + GRACE_S
        assert {answer.status_code for answer in answers} <= {503, 504}
        assert all(answer.json()["error"]["code"] for answer in answers)
        assert _in_flight(system) == 0
        state.start()
        for worker in system.workers:
            worker.signal(signal.SIGCONT)
        wait_until(lambda: _encode(system, "again").status_code == 200, 40, "an answer")


THREADS, PER_TURN = 32, 64  # requests sent for each turn that every thread takes


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_many_threads_wait_for_their_own_task_each(make_system: MakeSystem, requests: int) -> None:
    """S085: none is lost, and none is still told to wait while the others of its gateway get two results each.

    The order of results and answers says so at any speed. 100,000 requests are about the 20 minutes of the case.
    """
    system = make_system(forward_s=0.2)
    turns = requests // PER_TURN
    results = Results(system)
    answered: list[tuple[int, str]] = []  # gateway and task, in order

    def wait(number: int) -> None:
        gateway = number % 2
        body = {"primitive": "encode", "model": system.model.spec.model, "items": [{"text": f"thread {number}"}]}
        with httpx.Client(base_url=system.gateways[gateway].url, timeout=90) as client:
            for _ in range(turns):
                task = client.post("/v1/tasks", json=body).json()["id"]
                assert client.get(f"/v1/tasks/{task}?wait=60").json()["state"] == "succeeded"
                answered.append((gateway, task))

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(wait, number) for number in range(THREADS)]:
            future.result()
    assert len(answered) == THREADS * turns
    stored = results.stop()
    for gateway in range(2):
        places = [stored[task] for its, task in answered if its == gateway]
        assert max(_overtaken(places)) < 2 * (THREADS // 2 - 1)


def _overtaken(places: list[int]) -> list[int]:
    """How many of those answered before each one had their result later; `places` are of results, by answer."""
    return [sum(before > place for before in places[:position]) for position, place in enumerate(places)]


class Results:
    """Listens to Redis for results of tasks; `stop` tells the place of each task's in the order they were stored."""

    def __init__(self, system: System) -> None:
        self._prefix = names.task_result("")
        self._channel = system.redis.pubsub(ignore_subscribe_messages=True)
        self._channel.psubscribe(**{f"{self._prefix}*": self._hear})
        self._places: dict[str, int] = {}
        self._thread = self._channel.run_in_thread(sleep_time=0.05, daemon=True)

    def _hear(self, message: dict[str, bytes]) -> None:
        task = message["channel"].decode().removeprefix(self._prefix)
        self._places.setdefault(task, len(self._places))

    def stop(self) -> dict[str, int]:
        self._thread.stop()
        self._thread.join()
        return self._places


WARM, PART = 4, 50


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_calls_that_end_in_any_way_leave_nothing_behind(make_system: MakeSystem, requests: int) -> None:
    """S084: four in five are answered, one in ten times out, one in ten leaves."""
    system = make_system(settings={"SHOAL_REQUEST_TIMEOUT_S": 1.0, "SHOAL_TASK_TTL_S": 3})
    process = system.gateways[0].process
    assert process is not None
    gateway = psutil.Process(process.pid)
    rounds = requests // (10 * PART)
    for _ in range(WARM):
        _round(system)
    memory = gateway.memory_info().rss
    channels, keys = len(system.redis.pubsub_channels()), system.redis.dbsize()
    for _ in range(rounds):
        _round(system)
    assert gateway.memory_info().rss < 1.05 * memory
    assert len(system.redis.pubsub_channels()) == channels
    wait_until(lambda: system.redis.dbsize() <= keys, 30, "the keys' end")
    assert _in_flight(system) == 0


def _round(system: System) -> None:
    """Ten parts: about eight answered, one that left, one that timed out."""
    url, model = system.gateways[0].url, system.model.spec.model
    request = Native().request(url, model, "a text")
    statuses: list[int] = []

    def take(position: int, status: int, body: bytes) -> None:
        statuses.append(status)

    load.run(url, [request], take, connections=8, seconds=60, count=8 * PART)
    asyncio.run(_leave(url, request))
    for worker in system.workers:
        worker.signal(signal.SIGSTOP)
    waker = threading.Timer(1.5, _wake, [system])
    waker.start()
    load.run(url, [request], take, connections=PART, seconds=10, count=PART)
    waker.join()
    assert set(statuses) <= {200, 503, 504}  # frozen for long, a worker counts as gone
    assert statuses.count(200) >= 4 * PART


def _wake(system: System) -> None:
    for worker in system.workers:
        worker.signal(signal.SIGCONT)


async def _leave(url: str, request: bytes) -> None:
    """Send and hang up."""
    host, port = load.loopback(url)
    for _ in range(PART):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        await writer.drain()
        writer.transport.abort()
