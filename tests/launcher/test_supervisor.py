"""The supervisor, on small shell scripts: readiness, restarts, and that nothing stays behind."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from project.cli.failure import CannotStart
from project.cli.output import Output
from project.cli.services import Launch, Service
from project.cli.supervisor import Stopped, Supervisor, describe, restart_delay

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
SLEEPS = "exec sleep 60"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    output = Output(tmp_path / "logs")
    supervisor = Supervisor(output, on_change=lambda: None)
    yield supervisor
    supervisor.end()
    output.close()


def service(script: str, name: str = "thing", is_ready: Callable[[], bool] = lambda: True, grace: float = 5) -> Service:
    launch = Launch(["/bin/sh", "-c", script], ENVIRONMENT, is_ready)
    return Service(name, lambda: launch, grace=grace)


def stop_when(supervisor: Supervisor, condition: Callable[[], object]) -> threading.Thread:
    """Ask it to stop once something holds, or after ten seconds."""

    def wait() -> None:
        deadline = time.monotonic() + 10
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        supervisor.ask_to_stop("the test is over")

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def run(supervisor: Supervisor, until: Callable[[], object]) -> None:
    thread = stop_when(supervisor, until)
    with pytest.raises(Stopped):
        supervisor.run()
    thread.join()


def test_ready_is_said_with_the_address(supervisor: Supervisor, capsys: pytest.CaptureFixture[str]) -> None:
    launch = Launch(["/bin/sh", "-c", SLEEPS], ENVIRONMENT)
    supervisor.start([Service("gateway", lambda: launch, "http://127.0.0.1:8080")])
    supervisor.wait_until_ready()
    assert "gateway is ready (http://127.0.0.1:8080)" in capsys.readouterr().out


def test_a_full_disk_costs_lines_of_a_file_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = Output(tmp_path)
    (tmp_path / "gateway.log").symlink_to("/dev/full")
    for number in range(3):
        output.child("gateway", f"line {number}")
    output.close()
    shown = capfd.readouterr()
    assert shown.out.count("line") == 3
    assert shown.err == ""


def test_output_is_prefixed_and_logged(
    supervisor: Supervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor.start([service("echo hello; exec sleep 60")])
    run(supervisor, lambda: (tmp_path / "logs" / "thing.log").exists())
    assert "thing    | hello" in capsys.readouterr().out
    assert (tmp_path / "logs" / "thing.log").read_text() == "hello\n"


def test_a_killed_child_is_restarted_and_said_so(supervisor: Supervisor, capsys: pytest.CaptureFixture[str]) -> None:
    supervisor.start([service(SLEEPS)])
    supervisor.wait_until_ready()
    (first,) = supervisor.processes()
    psutil.Process(first.pid).kill()
    run(supervisor, lambda: any(p.ready and p.pid != first.pid for p in supervisor.processes()))
    (second,) = supervisor.processes()
    said = capsys.readouterr().out
    assert second.restarts == 1
    assert f"thing (pid {first.pid}) was ended by SIGKILL" in said
    assert "thing is ready again" in said


def test_a_dead_childs_own_children_go_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    supervisor.start([service(f"sleep 60 & echo $! > {note}; wait")])
    supervisor.wait_until_ready()
    run(supervisor, lambda: note.exists() and note.read_text().strip())
    grandchild = psutil.Process(int(note.read_text()))
    (leader,) = supervisor.processes()
    psutil.Process(leader.pid).kill()
    run(supervisor, lambda: not grandchild.is_running())
    assert not grandchild.is_running()


def test_a_start_that_fails_tells_the_last_words(supervisor: Supervisor) -> None:
    supervisor.start([service("echo no such luck; exit 3", is_ready=lambda: False)])
    with pytest.raises(CannotStart, match=r"ended with status 3, 2 times.*\n    no such luck"):
        supervisor.wait_until_ready()


def test_what_is_not_essential_may_fail_at_the_start(supervisor: Supervisor) -> None:
    launch = Launch(["/bin/sh", "-c", "exit 1"], ENVIRONMENT, lambda: False)
    supervisor.start([Service("flower", lambda: launch, is_essential=False), service(SLEEPS)])
    supervisor.wait_until_ready()
    assert any(process.name == "thing" and process.ready for process in supervisor.processes())


def test_what_ignores_sigterm_is_killed_after_its_grace(supervisor: Supervisor) -> None:
    supervisor.start([service("trap '' TERM; echo up; while :; do sleep 0.1; done", grace=0.5)])
    supervisor.wait_until_ready()
    (process,) = supervisor.processes()
    started = time.monotonic()
    supervisor.end()
    assert time.monotonic() - started < 5
    assert not psutil.pid_exists(process.pid)


def test_workers_end_first_and_valkey_last(supervisor: Supervisor, tmp_path: Path) -> None:
    order = tmp_path / "order"
    script = f"trap 'echo NAME >> {order}; exit' TERM; while :; do sleep 0.02; done"
    names = ("valkey", "gateway", "worker")
    supervisor.start(service(script.replace("NAME", name), name) for name in names)
    supervisor.wait_until_ready()
    time.sleep(0.3)  # the shells have set their traps
    supervisor.end()
    assert order.read_text().split() == ["worker", "gateway", "valkey"]


def test_a_second_signal_hastens_the_end(supervisor: Supervisor) -> None:
    supervisor.start([service("trap '' TERM; while :; do sleep 0.1; done", "worker", grace=60)])
    supervisor.wait_until_ready()
    supervisor.ask_to_stop("once more")
    started = time.monotonic()
    supervisor.end()
    assert time.monotonic() - started < 5


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from project.cli.output import Output
from project.cli.services import Launch, Service
from project.cli.supervisor import Supervisor
launch = Launch(["/bin/sleep", "60"], {{}})
supervisor = Supervisor(Output(Path({str(tmp_path)!r})), lambda: None)
supervisor.start([Service("thing", lambda: launch)])
supervisor.wait_until_ready()
print(supervisor.processes()[0].pid, flush=True)
supervisor.run()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as lines:
        child = psutil.Process(int(list(zip(range(2), lines, strict=False))[1][1]))
        parent.kill()
        parent.wait()
        assert child.wait(2) is None or not child.is_running()


@pytest.mark.parametrize(
    ("ages", "delay"), [([0], 0.1), ([5, 0], 1.0), ([100, 90, 0], 0.1), ([50, 40, 30, 20, 10, 0], 15.0)]
)
def test_restarts_slow_down_with_recent_deaths(ages: list[float], delay: float) -> None:
    now = 1000.0
    assert restart_delay([now - age for age in ages], now) == delay


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with status 0"), (-signal.SIGSEGV, "was ended by SIGSEGV"), (-signal.SIGKILL, "memory ran out")],
)
def test_an_end_is_described(code: int, words: str) -> None:
    assert words in describe(code)
