"""`./shoal` itself: the environment it makes, and when it makes it again. A checkout of its own, with tiny packages."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGE = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "{name}"
version = "1.0"
"""
# The smallest build backend there is, so that pip needs no index.
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    import tomllib
    name = tomllib.load(open("pyproject.toml", "rb"))["project"]["name"]
    file = f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{file}", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return file
"""


class Checkout:
    """A copy of `shoal` with requirement files of this test's own and a command line that says what is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "shoal", folder / "shoal")
        (folder / "requirements").mkdir()
        (folder / "project" / "cli").mkdir(parents=True)
        (folder / "project" / "cli" / "main.py").write_text(
            "import importlib.util, sys\n"
            "def main(arguments):\n"
            "    found = [name for name in ('alpha', 'beta', 'gamma') if importlib.util.find_spec(name)]\n"
            "    print(arguments, found, sys.prefix)\n"
            "    return 7\n"
        )
        self.require("requirements.txt", self.package("alpha"))
        self.require("requirements/dev.txt", self.package("beta"))

    def package(self, name: str) -> str:
        folder = self.folder / "packages" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PACKAGE.format(name=name))
        (folder / "backend.py").write_text(BACKEND)
        return str(folder)

    def require(self, file: str, *lines: str) -> None:
        (self.folder / file).write_text("\n".join(lines) + "\n")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONSTRAINT": ""}
        return subprocess.Popen(
            [sys.executable, str(self.folder / "shoal"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_first_run_installs_and_hands_over(checkout: Checkout) -> None:
    code, out, err = checkout.run("status", "--json")
    assert (code, out) == (7, f"['status', '--json'] ['alpha'] {checkout.folder / '.venv'}\n")
    assert "Making a virtual environment" in err
    assert "Installed in" in err


def test_the_second_run_installs_nothing(checkout: Checkout) -> None:
    checkout.run("status")
    assert checkout.run("status")[2] == ""


def test_a_changed_requirement_is_installed_at_the_next_run(checkout: Checkout) -> None:
    checkout.run("status")
    checkout.require("requirements.txt", str(checkout.folder / "packages" / "alpha"), checkout.package("gamma"))
    _, out, err = checkout.run("status")
    assert "['alpha', 'gamma']" in out
    assert "Making a virtual environment" not in err


def test_a_change_in_a_file_that_is_named_counts(checkout: Checkout) -> None:
    checkout.require("requirements.txt", "-r requirements/base.txt")
    checkout.require("requirements/base.txt", str(checkout.folder / "packages" / "alpha"))
    checkout.run("status")
    checkout.require("requirements/base.txt", checkout.package("gamma"))
    assert "['alpha', 'gamma']" in checkout.run("status")[1]


def test_tests_bring_their_own_requirements(checkout: Checkout) -> None:
    checkout.run("status")
    assert "['alpha', 'beta']" in checkout.run("test")[1]


def test_two_first_runs_at_once_install_once(checkout: Checkout) -> None:
    processes = [checkout.start("status") for _ in range(2)]
    ends = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [7, 7]
    assert sum("Installed in" in err for _, err in ends) == 1


def test_a_failed_install_is_one_sentence_and_is_tried_again(checkout: Checkout) -> None:
    good = (checkout.folder / "requirements.txt").read_text().strip()
    checkout.require("requirements.txt", good, "no-such-package-anywhere==1")
    code, out, err = checkout.run("status")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("shoal: Installing failed: the package index has no release")
    checkout.require("requirements.txt", good)
    assert checkout.run("status")[0] == 7


def test_a_broken_environment_is_made_anew(checkout: Checkout) -> None:
    checkout.run("status")
    (checkout.folder / ".venv" / "bin" / "python").unlink()
    assert checkout.run("status")[0] == 7


def test_a_package_lost_since_is_named(checkout: Checkout) -> None:
    checkout.run("status")
    main = checkout.folder / "project" / "cli" / "main.py"
    main.write_text("import lost_package\n" + main.read_text())
    code, _, err = checkout.run("status")
    assert code == 1
    assert "The package lost_package is missing" in err


def test_the_record_names_every_file_it_installed(checkout: Checkout) -> None:
    checkout.run("test")
    record = json.loads((checkout.folder / ".venv" / ".shoal-installed").read_text())
    assert set(record) == {"requirements.txt", "requirements/dev.txt"}
