"""`./shoal bundle`: environments made of tiny packages, without an index."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from project.cli import bundle
from project.cli.environment import ROOT
from project.cli.failure import CannotStart
from project.cli.main import main
from tests.launcher.test_bootstrap import BACKEND, PACKAGE
from workers import bundles
from workers.bundles import Condition, Found


class Machine:
    """Requirement files and environments of this test's own; the base is the tests' own environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "requirements"
        self.files.mkdir()
        self.bundles = folder / "bundles"

    def package(self, name: str) -> str:
        """A requirement of an empty package, of version 1.0."""
        folder = self.folder / "packages" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(PACKAGE.format(name=name))
        (folder / "backend.py").write_text(BACKEND)
        return f"{name} @ {folder.as_uri()}"

    def describe(self, *lines: str) -> None:
        (self.files / "mine.txt").write_text("\n".join(lines) + "\n")

    def install(self, *, again: bool = False) -> Found:
        assert bundle.install("mine", self.bundles, self.files, again=again) == 0
        return self.look()

    def look(self) -> Found:
        return bundles.look("mine", self.bundles, self.files)

    def builds(self) -> list[Path]:
        return sorted((self.bundles / "mine").glob("build-*"))

    def listed(self, capsys: pytest.CaptureFixture[str]) -> list[str]:
        capsys.readouterr()
        bundle.show(self.bundles, self.files)
        return capsys.readouterr().out.splitlines()


def ran(python: Path | None, code: str) -> str:
    """What the bundle's interpreter prints, or the last line of how it failed."""
    assert python is not None
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    return (done.stdout or done.stderr).strip().splitlines()[-1]


@pytest.fixture(autouse=True)
def without_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONSTRAINT": ""}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Path]]:
    """A bundle of an own package and an own safetensors, which the base has too; and its interpreter."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        machine.describe("# imports: alpha", machine.package("alpha"), machine.package("safetensors"))
        found = machine.install()
    assert found.condition is Condition.READY and found.python is not None
    yield machine, found.python


def test_a_bundle_has_what_it_pins_before_what_the_base_has(made: tuple[Machine, Path]) -> None:
    where = ran(made[1], "import safetensors; print(safetensors.__file__)")
    assert Path(where).is_relative_to(made[0].builds()[0] / bundles.ENVIRONMENT)


def test_a_bundle_shares_the_bases_torch_and_what_torch_needs(made: tuple[Machine, Path]) -> None:
    code = "import importlib.util as u; print(*(u.find_spec(name).origin for name in ('torch', 'sympy', 'numpy')))"
    places = [Path(place).resolve() for place in ran(made[1], code).split()]
    assert [place.is_relative_to(Path(sys.prefix).resolve()) for place in places] == [True] * 3


@pytest.mark.parametrize("package", ["django", "transformers", "gliner", "pip"])
def test_a_bundle_sees_nothing_else_of_the_base(made: tuple[Machine, Path], package: str) -> None:
    assert ran(made[1], f"import {package}") == f"ModuleNotFoundError: No module named '{package}'"


def test_the_marker_says_what_is_its_own_and_what_is_shared(made: tuple[Machine, Path]) -> None:
    marker = made[0].look().marker
    assert marker is not None
    assert marker.own == {"alpha": "1.0", "safetensors": "1.0"}
    assert marker.shared.keys() == {"msgpack", "numpy", "tokenizers", "torch"}


def test_the_list_says_what_is_ready(made: tuple[Machine, Path], capsys: pytest.CaptureFixture[str]) -> None:
    base, mine = made[0].listed(capsys)
    assert base.split()[:4] == ["base", "in", "the", "base"]
    assert mine.startswith("mine             ready          alpha 1.0, safetensors 1.0; of the base: msgpack ")


def test_installing_what_is_ready_makes_nothing(made: tuple[Machine, Path]) -> None:
    before = made[0].builds()
    made[0].install()
    assert made[0].builds() == before


def test_a_changed_file_is_stale_until_it_is_installed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.describe(machine.package("alpha"))
    first = machine.install()
    machine.describe(machine.package("alpha"), machine.package("beta"))
    assert machine.look().condition is Condition.STALE
    assert "its requirements file has changed" in machine.listed(capsys)[1]
    second = machine.install()
    assert second.condition is Condition.READY
    assert ran(second.python, "import beta; print('here')") == "here"
    assert ran(first.python, "import alpha; print('here')") == "here"  # engines may still run in it


def test_builds_that_nobody_needs_any_more_go(machine: Machine) -> None:
    machine.describe(machine.package("alpha"))
    first = machine.install()
    half_made = machine.bundles / "mine" / "build-0000"
    half_made.mkdir()
    second = machine.install(again=True)
    third = machine.install(again=True)
    assert len(machine.builds()) == 2
    assert [found.python is not None and found.python.exists() for found in (first, second, third)] == [
        *(False, True, True),
    ]


def test_a_failed_install_is_one_sentence_and_leaves_what_was_there(machine: Machine) -> None:
    machine.describe(machine.package("alpha"))
    before = machine.install()
    machine.describe("no-such-package-anywhere==1")
    with pytest.raises(CannotStart, match="`pip install` failed: the package index has no such release"):
        machine.install()
    assert machine.look().python == before.python
    assert len(machine.builds()) == 1


def test_a_promise_that_is_not_kept_is_no_install(machine: Machine) -> None:
    machine.describe("# imports: alpha gamma", machine.package("alpha"))
    with pytest.raises(CannotStart, match=r"does not import what it promises: .*No module named 'gamma'"):
        machine.install()
    assert (machine.look().condition, machine.builds()) == (Condition.MISSING, [])


def test_a_line_that_is_no_requirement_is_named(machine: Machine) -> None:
    machine.describe("alpha = 1")
    with pytest.raises(CannotStart, match=r"mine\.txt holds a line that is no requirement"):
        machine.install()


def test_a_place_that_cannot_be_written_is_a_sentence(machine: Machine) -> None:
    machine.describe(machine.package("alpha"))
    machine.bundles.write_text("a file")
    with pytest.raises(CannotStart, match="cannot be made"):
        machine.install()


def test_a_package_that_the_base_has_as_pinned_is_shared(machine: Machine) -> None:
    import psutil

    machine.describe(f"psutil=={psutil.__version__}", machine.package("alpha"))
    marker = machine.install().marker
    assert marker is not None
    assert marker.own == {"alpha": "1.0"}
    assert marker.shared["psutil"] == psutil.__version__


def test_a_removed_bundle_is_gone(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.describe(machine.package("alpha"))
    machine.install()
    assert bundle.remove("mine", machine.bundles) == 0
    assert machine.look().condition is Condition.MISSING
    assert list(machine.bundles.iterdir()) == []
    assert "not installed" in machine.listed(capsys)[1]


def test_an_environment_that_no_file_describes_is_listed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.bundles / "old").mkdir(parents=True)
    assert machine.listed(capsys)[1].endswith("run `./shoal bundle remove old`")


@pytest.mark.parametrize(
    ("line", "status", "out", "err"),
    [
        ("install nonesuch", 1, "", "There is no bundle 'nonesuch'; there are: base, documents, transformers4."),
        ("install documents", 0, "documents runs in the worker's own environment", ""),
        ("remove transformers4", 0, "transformers4 has no environment here", ""),
        ("remove ../data", 1, "", "'../data' is not the name of a bundle"),
        ("list", 0, "run `./shoal bundle install transformers4`", ""),
    ],
)
def test_the_command_says_what_it_did(tmp_path: Path, line: str, status: int, out: str, err: str) -> None:
    command = [sys.executable, "-m", "project.cli", "bundle", *line.split(), "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == status
    assert out in done.stdout
    assert err in done.stderr


def test_an_action_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bundle"])
    assert "ACTION" in capsys.readouterr().err
