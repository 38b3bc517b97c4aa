"""Which interpreter a bundle's engines run in, and what becomes of a model whose bundle is not there."""

import os
import signal
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from catalog.bundles import REQUIREMENTS, known
from catalog.snapshot import Model
from protocol.errors import ModelLoadFailed
from tests.unit.workers_doubles import RecordingOutbox, Start, delivery, fake_model
from workers import bundles
from workers.bundles import Condition, Marker
from workers.config import WorkerConfig
from workers.dispatcher import Dispatcher

NAME = "transformers4"
FILE = REQUIREMENTS / f"{NAME}.txt"


def made(folder: Path, **marker: Any) -> Path:
    """An environment as an install leaves it, but that it shares all of the base; answers its build."""
    build = folder / NAME / "build-1"
    venv.create(build / bundles.ENVIRONMENT, symlinks=True)
    site = build / bundles.ENVIRONMENT / "lib" / f"python{bundles.python_version()}" / "site-packages"
    (site / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (build / bundles.SHARED).mkdir()
    facts = {"requirements": bundles.digest(FILE), "python": bundles.python_version(), **marker}
    (build / bundles.MARKER).write_text(Marker(**facts).to_json())
    (folder / NAME / bundles.CURRENT).symlink_to(build.name)
    return build


def in_bundle(model: Model, name: str = NAME) -> Model:
    return replace(model, spec=replace(model.spec, bundle=name))


def ask(dispatcher: Dispatcher, outbox: RecordingOutbox, model: Model) -> Any:
    """The error of one request, None if there was none."""
    one = delivery(model, "hello")
    dispatcher.submit(one)
    (reply,) = outbox.wait_for([one.request.id])
    return reply.error


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not claim():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)


def pid(dispatcher: Dispatcher, bundle: str) -> int:
    found: int = next(engine["pid"] for engine in dispatcher.status()["engines"] if engine["bundle"] == bundle)
    return found


def test_the_bundles_are_the_base_and_what_has_a_file() -> None:
    assert known() == ("base", "documents", NAME)


def test_a_file_says_what_it_pins_and_what_it_promises(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("# Words.\n# imports: alpha beta.gamma\nalpha==1 # why\n\n-r more.txt\n")
    assert bundles.pins(file) == ["alpha==1", "-r more.txt"]
    assert bundles.imports(file) == ["alpha", "beta.gamma"]


def test_a_digest_is_of_all_that_a_file_names(tmp_path: Path) -> None:
    file, named = tmp_path / "mine.txt", tmp_path / "more.txt"
    file.write_text("-r more.txt\n")
    named.write_text("alpha==1\n")
    before = bundles.digest(file)
    named.write_text("alpha==2\n")
    assert bundles.digest(file) != before


@pytest.mark.parametrize("name", ["base", "documents"])
def test_a_bundle_that_pins_nothing_runs_in_the_base(tmp_path: Path, name: str) -> None:
    found = bundles.look(name, tmp_path)
    assert (found.condition, found.python) == (Condition.BASE, Path(sys.executable))


def test_what_was_never_installed_is_missing(tmp_path: Path) -> None:
    assert bundles.look(NAME, tmp_path).condition is Condition.MISSING


def test_a_whole_environment_is_ready(tmp_path: Path) -> None:
    build = made(tmp_path)
    found = bundles.look(NAME, tmp_path)
    assert (found.condition, found.python) == (Condition.READY, build / "env" / "bin" / "python")


def test_a_build_without_its_marker_is_broken(tmp_path: Path) -> None:
    (made(tmp_path) / bundles.MARKER).unlink()
    assert bundles.look(NAME, tmp_path).condition is Condition.BROKEN


def test_a_build_that_lost_its_interpreter_is_broken(tmp_path: Path) -> None:
    (made(tmp_path) / "env" / "bin" / "python").unlink()
    assert bundles.look(NAME, tmp_path).condition is Condition.BROKEN


def test_a_marker_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (made(tmp_path) / bundles.MARKER).write_text('{"requirements": ')
    assert bundles.look(NAME, tmp_path).condition is Condition.BROKEN


def test_a_changed_file_makes_it_stale_and_it_still_runs(tmp_path: Path) -> None:
    build = made(tmp_path, requirements="of an older file")
    found = bundles.look(NAME, tmp_path)
    assert (found.condition, found.python) == (Condition.STALE, build / "env" / "bin" / "python")


def test_what_shares_a_package_that_the_base_lost_is_broken(tmp_path: Path) -> None:
    (made(tmp_path) / bundles.SHARED / "torch-1.0.dist-info").symlink_to(tmp_path / "gone")
    found = bundles.look(NAME, tmp_path)
    assert (found.condition, found.python) == (Condition.BROKEN, None)
    assert "torch-1.0.dist-info" in found.why


def test_what_was_made_for_another_python_is_broken(tmp_path: Path) -> None:
    made(tmp_path, python="2.7")
    found = bundles.look(NAME, tmp_path)
    assert (found.condition, found.why) == (
        Condition.BROKEN,
        f"it was made for Python 2.7 and this is {bundles.python_version()}",
    )


@pytest.mark.parametrize("name", ["nonesuch", "../base", ""])
def test_a_bundle_that_has_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(bundles.Unusable, match="it has: base, documents"):
        bundles.interpreter(name, WorkerConfig("w", tmp_path))


def test_an_engine_runs_in_its_bundles_environment(start: Start, outbox: RecordingOutbox, tmp_path: Path) -> None:
    build = made(tmp_path / "bundles")
    ours, theirs = fake_model("org/a"), in_bundle(fake_model("org/b"))
    dispatcher = start(ours, theirs)
    assert [ask(dispatcher, outbox, model) for model in (ours, theirs)] == [None, None]
    assert psutil.Process(pid(dispatcher, "base")).cmdline()[0] == sys.executable
    assert psutil.Process(pid(dispatcher, NAME)).cmdline()[0] == str(build / "env" / "bin" / "python")


def test_the_environments_folder_can_be_elsewhere(start: Start, outbox: RecordingOutbox, tmp_path: Path) -> None:
    made(tmp_path / "elsewhere")
    model = in_bundle(fake_model("org/a"))
    assert ask(start(model, bundles_folder=tmp_path / "elsewhere"), outbox, model) is None


def test_bundles_share_one_ledger(start: Start, outbox: RecordingOutbox, tmp_path: Path) -> None:
    made(tmp_path / "bundles")
    ours, theirs = fake_model("org/a", bytes=60), in_bundle(fake_model("org/b", bytes=60))
    dispatcher = start(ours, theirs, memory_bytes=100, quantum_s=0.0)
    assert [ask(dispatcher, outbox, model) for model in (ours, theirs, ours)] == [None] * 3
    assert dispatcher.counters["evictions"] == 2
    until(lambda: dispatcher.status()["memory"] == {"capacity": 100, "used": 60})


def test_an_engine_that_is_killed_leaves_those_of_other_bundles(
    start: Start, outbox: RecordingOutbox, tmp_path: Path
) -> None:
    made(tmp_path / "bundles")
    ours, theirs = fake_model("org/a"), in_bundle(fake_model("org/b"))
    dispatcher = start(ours, theirs)
    assert [ask(dispatcher, outbox, model) for model in (ours, theirs)] == [None, None]
    kept, lost = pid(dispatcher, "base"), pid(dispatcher, NAME)
    os.kill(lost, signal.SIGKILL)
    assert [ask(dispatcher, outbox, model) for model in (ours, theirs)] == [None, None]
    assert pid(dispatcher, "base") == kept
    assert pid(dispatcher, NAME) != lost


def test_a_missing_bundle_is_a_load_error_that_names_the_command(start: Start, outbox: RecordingOutbox) -> None:
    model, mate = in_bundle(fake_model("org/a")), fake_model("org/b")
    dispatcher = start(model, mate)
    errors = [ask(dispatcher, outbox, model) for _ in range(3)]
    assert {(error["code"], error["error_class"]) for error in errors} == {(ModelLoadFailed.code, "BUNDLE")}
    assert f"`./shoal bundle install {NAME}`" in errors[0]["message"]
    assert dispatcher.counters["load_failures"] == 1  # the others met its cooldown
    assert ask(dispatcher, outbox, mate) is None


def test_what_was_missing_loads_once_it_is_installed(start: Start, outbox: RecordingOutbox, tmp_path: Path) -> None:
    model = in_bundle(fake_model("org/a"))
    dispatcher = start(model, load_cooldown_s=0.1)
    assert ask(dispatcher, outbox, model) is not None
    made(tmp_path / "bundles")
    until(lambda: ask(dispatcher, outbox, model) is None)


def test_a_bundle_removed_under_a_worker_is_a_load_error(start: Start, outbox: RecordingOutbox, tmp_path: Path) -> None:
    build = made(tmp_path / "bundles")
    model, mate = in_bundle(fake_model("org/a")), fake_model("org/b")
    dispatcher = start(model, mate)
    assert [ask(dispatcher, outbox, one) for one in (model, mate)] == [None, None]
    (build / bundles.MARKER).unlink()
    os.kill(pid(dispatcher, NAME), signal.SIGKILL)
    until(lambda: ask(dispatcher, outbox, model) is not None)
    assert "half made" in ask(dispatcher, outbox, model)["message"]
    assert ask(dispatcher, outbox, mate) is None


def test_an_interpreter_that_is_none_is_a_load_error(start: Start, outbox: RecordingOutbox, tmp_path: Path) -> None:
    python = made(tmp_path / "bundles") / "env" / "bin" / "python"
    python.unlink()
    python.write_text("not a program")
    python.chmod(0o755)
    model, mate = in_bundle(fake_model("org/a")), fake_model("org/b")
    dispatcher = start(model, mate)
    error = ask(dispatcher, outbox, model)
    assert (error["code"], error["error_class"]) == (ModelLoadFailed.code, "BUNDLE")
    assert ask(dispatcher, outbox, mate) is None


def test_an_environment_without_what_an_engine_needs_is_a_load_error(
    start: Start, outbox: RecordingOutbox, tmp_path: Path
) -> None:
    next((made(tmp_path / "bundles") / "env").rglob("base.pth")).unlink()
    model, mate = in_bundle(fake_model("org/a")), fake_model("org/b")
    dispatcher = start(model, mate)
    assert ask(dispatcher, outbox, model)["error_class"] == "ENGINE"
    assert ask(dispatcher, outbox, mate) is None
