"""What running out of memory taught outlives the worker, and nothing in its file can stop one."""

import json
import logging
import multiprocessing
from pathlib import Path

import pytest

from protocol import ceilings
from protocol.ceilings import MOST, MOST_BYTES, Ceiling
from tests.unit.scripted_device import Device, scripted_model
from tests.unit.workers_doubles import RecordingOutbox, delivery, fake_model, start_dispatcher
from workers.ceilings import KeptCeilings
from workers.config import WorkerConfig

MODEL = scripted_model("org/a", 10)


def config(data: Path, memory: int = 100, device: str = "cuda:0") -> WorkerConfig:
    return WorkerConfig("w", data, device=device, memory_bytes=memory)


def remember(data: Path, cost: int = 50, memory: int = 100) -> Path:
    kept = KeptCeilings(config(data, memory))
    kept.put(MODEL.spec, cost)
    kept.stop()
    return ceilings.file(data, "cuda:0")


@pytest.mark.parametrize(
    ("memory", "device", "cost"),
    [(100, "cuda:0", 50), (90, "cuda:0", 50), (101, "cuda:0", None), (100, "cuda:1", None), (100, "cpu", None)],
    ids=["same", "less memory", "more memory", "another card", "no card"],
)
def test_a_ceiling_holds_on_its_device_unless_that_has_more_memory(
    tmp_path: Path, memory: int, device: str, cost: int | None
) -> None:
    remember(tmp_path)
    assert KeptCeilings(config(tmp_path, memory, device)).get(MODEL.spec) == cost


def test_a_ceiling_is_for_one_digest(tmp_path: Path) -> None:
    remember(tmp_path)
    assert KeptCeilings(config(tmp_path)).get(scripted_model("org/a", 11).spec) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"null",
        b'{"d": 1}',
        b'{"d": {"model": "org/a"}}',
        b'{"d": {"model": "org/a", "cost": "9", "memory": 1, "at": 0}}',
        b'{"d": {"model": "org/a", "cost": 0, "memory": 1, "at": 0}}',
        b'{"d": {"model": "org/a", "cost": 9, "memory": 1, "at": 0, "more": 1}}',
        b" " * (MOST_BYTES + 1),
    ],
)
def test_a_file_that_cannot_be_read_is_logged_ignored_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = remember(tmp_path)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING, "shoal.ceilings"):
        assert KeptCeilings(config(tmp_path)).get(MODEL.spec) is None
    assert "not readable" in caplog.text
    remember(tmp_path, cost=40)
    assert KeptCeilings(config(tmp_path)).get(MODEL.spec) == 40


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ceilings").write_text("in the way")
    with caplog.at_level(logging.WARNING, "shoal.ceilings"):
        remember(tmp_path)
    assert "ceiling not remembered" in caplog.text


def test_the_oldest_leave_a_full_file(tmp_path: Path) -> None:
    file = ceilings.file(tmp_path, "cpu")
    ceilings.change(file, lambda _: {str(n): Ceiling("m", 1, 1, float(n)) for n in range(MOST + 3)})
    assert set(ceilings.read(file)) == {str(n) for n in range(3, MOST + 3)}


def _write_many(file: Path, name: str) -> None:
    for number in range(6):
        ceilings.change(file, lambda kept, n=number: {**kept, f"{name}-{n}": Ceiling(name, 1, 1, 0.0)})  # type: ignore[misc]


def test_workers_that_share_a_file_lose_nothing_of_each_other(tmp_path: Path) -> None:
    file = ceilings.file(tmp_path, "cpu")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(file, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(ceilings.read(file)) == 18
    assert json.loads(file.read_bytes())
    assert {path.name for path in file.parent.iterdir()} == {"cpu.json", ".cpu.json.lock"}


def test_the_dispatcher_says_when_a_budget_sinks_and_starts_from_what_was_kept() -> None:
    device = Device([MODEL], 100)
    device.ceilings["org/a"] = 40
    device.ask(MODEL, cost=30)
    device.engines[0].finish_load(10)
    assert device.dispatcher.models[MODEL.spec.digest].pace.ceiling == 40
    device.engines[0].fail_forward("memory")
    assert device.ceilings == {"org/a": 15}


def test_a_worker_that_starts_again_runs_out_of_memory_no_more(tmp_path: Path) -> None:
    model, outbox = fake_model("org/a", load_s=0.2, memory_cost=4), RecordingOutbox()
    retries = []
    for _ in range(2):
        dispatcher = start_dispatcher(tmp_path, outbox, [model])
        deliveries = [delivery(model, f"w{number}") for number in range(16)]
        for one in deliveries:
            dispatcher.submit(one)
        assert all(reply.error is None for reply in outbox.wait_for([one.request.id for one in deliveries]))
        dispatcher.drain(5.0)
        retries.append(dispatcher.counters["retries"])
    assert retries[0] > 0
    assert retries[1] == 0
