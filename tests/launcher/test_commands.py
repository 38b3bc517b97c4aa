"""The smaller commands and checks, without a running system."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import redis

from project.cli import preflight, processes, runfile, serve, services, stop, testing
from project.cli.failure import CannotStart
from project.cli.main import main
from project.cli.options import parser
from tests.launcher.serving import shoal


def parse(line: str) -> argparse.Namespace:
    options, options_rest = parser().parse_known_args(line.split())
    options.rest = options_rest
    return options


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("serve --port 0", "a port is a number from 1 to 65535, not '0'"),
        ("serve --port http", "a port is a number from 1 to 65535, not 'http'"),
        ("serve --workers 0", "must be a whole number of at least 1"),
        ("serve --prot 8080", "unrecognized arguments: --prot 8080"),
        ("server", "invalid choice: 'server'"),
    ],
)
def test_what_is_misspelt_is_named(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_folders_are_taken_from_where_the_caller_stands() -> None:
    assert parse("serve --data here").data == str(Path.cwd() / "here")


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("test", ["-m", "not heavy"]),
        ("test --heavy", []),
        ("test tests/unit -k cost", ["-m", "not heavy", "tests/unit", "-k", "cost"]),
        ("test -- -x tests/unit", ["-m", "not heavy", "-x", "tests/unit"]),
        ("test -m gpu", ["-m", "gpu"]),
    ],
)
def test_tests_get_their_tiers_and_the_rest(line: str, arguments: list[str]) -> None:
    assert testing.pytest_arguments(parse(line)) == arguments


def test_the_fast_tiers_start_no_worker() -> None:
    chosen = testing.pytest_arguments(parse("test --fast"))[1]
    assert "service" not in chosen
    assert "not heavy" in chosen


def test_nothing_running_is_not_healthy(data_dir: Path) -> None:
    done = shoal("status", data_dir, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"healthy": False, "running": False, "fleet": None}


def test_stopping_nothing_is_no_error(data_dir: Path) -> None:
    done = shoal("stop", data_dir)
    assert (done.returncode, done.stdout) == (0, f"nothing runs with its data in {data_dir}\n")


def test_stop_ends_what_a_lost_launcher_left(data_dir: Path) -> None:
    shell = ["/bin/sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"]
    left = psutil.Process(int(subprocess.run(shell, capture_output=True, text=True, check=True).stdout))
    while left.cmdline()[:1] != ["sleep"]:
        time.sleep(0.01)
    (data_dir / "run").mkdir(parents=True)
    gone = runfile.Process("launcher", 1, 0.0)
    runfile.write(
        data_dir, runfile.Running(gone, "", "", {}, (runfile.Process("worker", left.pid, left.create_time()),))
    )
    assert shoal("stop", data_dir).stdout == "ended worker\n"
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


def test_a_later_process_with_the_same_number_is_left_alone() -> None:
    assert not stop.is_alive(runfile.Process("worker", os.getpid(), created=1.0))


def test_one_launcher_per_data_folder(data_dir: Path) -> None:
    with runfile.hold(data_dir):
        assert runfile.is_held(data_dir)
        with pytest.raises(CannotStart, match="It runs already"), runfile.hold(data_dir):
            pass
    assert not runfile.is_held(data_dir)


def test_a_full_disk_is_noticed_before_the_start(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
    with pytest.raises(CannotStart, match="Only 5 MB are free on the disk of"):
        preflight.check_data(data_dir)


def test_the_data_folder_is_private(data_dir: Path) -> None:
    preflight.check_data(data_dir)
    assert data_dir.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("policy", "lost"),
    [("allkeys-lru", "queued requests"), ("volatile-lru", "results"), ("volatile-ttl", "results")],
)
def test_a_redis_that_evicts_is_refused(redis_url: str, policy: str, lost: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", policy)
        with pytest.raises(CannotStart, match=f"would drop {lost}") as caught:
            preflight.check_redis(redis_url, "--redis")
        client.config_set("maxmemory-policy", "noeviction")
    assert "//…@127.0.0.1" in str(caught.value)
    preflight.check_redis(redis_url, "--redis")


def test_what_is_no_redis_is_said(tmp_path: Path) -> None:
    web = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert web.stdout is not None
    with web.stdout as lines:
        port = lines.readline().split(" port ")[1].split()[0]
        with pytest.raises(CannotStart, match="does not answer as a Redis does"):
            preflight.check_redis(f"redis://127.0.0.1:{port}/0", "--redis")
        processes.end(web, grace=0)


def test_a_rabbitmq_that_answers_passes(rabbitmq_url: str) -> None:
    preflight.check_amqp(rabbitmq_url, "--broker")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_told_from_the_rest(host: str, is_loopback: bool) -> None:
    assert preflight.is_loopback(host) == is_loopback


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("box.lan", "http://box.lan:80"),
    ],
)
def test_the_shown_url_can_be_opened(host: str, url: str) -> None:
    assert services.http_url(host, 80) == url


def test_all_cuda_devices_get_a_worker_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 0\necho 1\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert serve.devices_of("all") == ["cuda:0", "cuda:1"]


def test_all_without_cuda_is_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(serve.devices_of("all")) == 1


def test_one_worker_serves_one_device(data_dir: Path) -> None:
    done = shoal("worker", data_dir, "--device", "all", "--redis", "redis://127.0.0.1:1/0")
    assert done.returncode == 1
    assert "One worker serves one device" in done.stdout + done.stderr
