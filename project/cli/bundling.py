"""Makes and removes the environments of bundles, by the layout that `workers/bundles.py` describes.

An environment holds what its bundle pins. torch and the few packages beside it that every engine needs are not
installed again where the base's release will do: they are linked, each by itself, so that the bundle sees them and
nothing else of the base, and its own come first.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from project.cli import pip
from project.cli.environment import ROOT
from project.cli.failure import CannotStart
from workers import bundles
from workers.bundles import CURRENT, ENVIRONMENT, MARKER, SHARED, Marker

# What an engine needs in any bundle; with all that these need.
BASE_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "msgpack")
ENGINE = "workers.engine.main"
CHECK_S = 600

_CHECK = """
import importlib, json, sys
from importlib.metadata import distribution
modules, packages = map(json.loads, sys.argv[1:])
for name in modules:
    importlib.import_module(name)
print(json.dumps({name: distribution(name).version for name in packages}))
"""


@dataclass(frozen=True, slots=True)
class Making:
    """One bundle to be made: its file, and the folder of its builds."""

    name: str
    file: Path
    folder: Path
    say: pip.Say

    @property
    def log(self) -> Path:
        return self.folder / "install.log"


def install(making: Making) -> Marker:
    """Build beside what is there, check, and only then take its place. Raises CannotStart and leaves what was there.

    The caller holds `only_one`.
    """
    with no_traceback(making.folder):
        making.log.write_text("")
        build = making.folder / f"build-{secrets.token_hex(4)}"
        try:
            marker = _build(making, build)
            (build / MARKER).write_text(marker.to_json())
        except BaseException:
            shutil.rmtree(build, ignore_errors=True)
            raise
        _swap(making.folder, build)
    return marker


def remove(folder: Path, say: pip.Say) -> bool:
    """Whether there was anything to remove of this bundle. Raises CannotStart."""
    if not folder.is_dir():
        return False
    with only_one(folder, say), no_traceback(folder):
        gone = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
        folder.rename(gone)  # at once: nothing starts in a half of it
        shutil.rmtree(gone)
    return True


@contextlib.contextmanager
def no_traceback(folder: Path) -> Iterator[None]:
    """A full disk, or a folder of somebody else's, is a sentence."""
    try:
        yield
    except OSError as error:
        raise CannotStart(f"In the folder {folder}: {error.strerror}. SHOAL_BUNDLES names another place.") from error


@contextlib.contextmanager
def only_one(folder: Path, say: pip.Say) -> Iterator[None]:
    """Two commands on one bundle at once: the second waits. The lock is on its folder itself."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise CannotStart(f"The folder {folder} cannot be made: {error.strerror}. Set SHOAL_BUNDLES.") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another ./shoal is busy with {folder.name}; waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build(making: Making, build: Path) -> Marker:
    python = build / ENVIRONMENT / "bin" / "python"
    making.say(f"Making the environment of {making.name} …")
    _make(build / ENVIRONMENT)
    shared = share(build, _wanted(making.file))
    making.say(f"It shares {len(shared)} packages with the base, torch {shared['torch']} among them.")
    making.say(f"Installing what {making.file.name} pins …")
    pip.run(python, ["install", "--no-input", "-r", str(making.file)], making.log, making.say)
    own = _drop_hidden(build)
    pip.run(python, ["check"], making.log, making.say)
    making.say("Checking that it imports what it promises …")
    versions = _checked(making, python)
    return Marker(
        bundles.digest(making.file),
        bundles.python_version(),
        {name: version for name, version in versions.items() if name in own},
        {name: version for name, version in versions.items() if name not in own},
    )


def _make(environment: Path) -> None:
    command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=pip.clean_environment())
    if done.returncode:
        reason = (done.stdout + done.stderr).strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise CannotStart(f"The virtual environment could not be made: {reason[0]}")


def _wanted(file: Path) -> list[str]:
    """Names of the base's packages to share: what engines need, and what the file pins as the base has it."""
    wanted = list(BASE_PACKAGES)
    for pin in _requirements(file):
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(pin.name)
            if pin.url is None and pin.specifier and pin.specifier.contains(version, prereleases=True):
                wanted.append(pin.name)
    return wanted


def _requirements(file: Path) -> list[Requirement]:
    try:
        return [Requirement(line) for line in bundles.pins(file) if not line.startswith("-")]
    except InvalidRequirement as error:
        raise CannotStart(f"{file.name} holds a line that is no requirement: {error}") from None


def _pinned(file: Path) -> list[str]:
    return [pin.name for pin in _requirements(file)]


def share(build: Path, names: Iterable[str]) -> dict[str, str]:
    """Links to these packages of the base and to all they need; answers name → version. Raises CannotStart."""
    links = build / SHARED
    links.mkdir()
    found = dict(_closure(names))
    for package in found.values():
        site = Path(str(package.locate_file("")))
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (links / top).is_symlink():
                (links / top).symlink_to(site / top)
    site = _site(build)
    # Lines of such a file come after the environment's own packages; a relative one is taken from where it stands.
    (site / "shared.pth").write_text(os.path.relpath(links, site) + "\n")
    return {name: package.version for name, package in found.items()}


def _site(build: Path) -> Path:
    """Where the environment has its own packages."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(build / ENVIRONMENT)}))


def _drop_hidden(build: Path) -> set[str]:
    """Unlink what the environment has of its own, so that the base may change it; answers the names of that."""
    installed = metadata.distributions(path=[str(_site(build))])
    own: set[str] = {canonicalize_name(package.metadata["Name"]) for package in installed}
    for link in (build / SHARED).glob("*.dist-info"):
        if canonicalize_name(link.name.split("-")[0]) in own:
            link.unlink()
    return own


def _closure(names: Iterable[str]) -> Iterator[tuple[str, metadata.Distribution]]:
    """These packages of the base and all that they need there, extras included."""
    todo = [(name, "") for name in names]
    done: set[tuple[str, str]] = set()
    while todo:
        name, extra = todo.pop()
        if (canonicalize_name(name), extra) in done:
            continue
        done.add((canonicalize_name(name), extra))
        package = _package(name)
        yield canonicalize_name(name), package
        for needed in map(Requirement, package.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                todo += [(needed.name, more) for more in (needed.extras or {""})]


def _package(name: str) -> metadata.Distribution:
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise CannotStart(
            f"The package {name} is missing in {sys.prefix}: bundles are installed where workers run; "
            "install requirements/worker.txt there."
        ) from None
    if package.files is None:
        raise CannotStart(f"The package {name} in {sys.prefix} has no list of its files, so it cannot be shared.")
    return package


def _checked(making: Making, python: Path) -> dict[str, str]:
    """Name → version of what the file pins and engines need, as a fresh engine sees them. Raises CannotStart."""
    modules = [ENGINE, *bundles.imports(making.file)]
    packages = sorted({canonicalize_name(name) for name in (*BASE_PACKAGES, *_pinned(making.file))})
    command = [str(python), "-c", _CHECK, json.dumps(modules), json.dumps(packages)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=CHECK_S, env=pip.clean_environment()
        )
    except subprocess.TimeoutExpired:
        raise CannotStart(f"{making.name} took more than {CHECK_S} s to import what it promises.") from None
    with making.log.open("a") as log:
        log.write(done.stdout + done.stderr)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise CannotStart(f"{making.name} does not import what it promises: {reason}. The log is in {making.log}.")
    versions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return versions


def _swap(folder: Path, build: Path) -> None:
    """Engines start in `build` from now on. The build before it stays for those that run in it; older ones go."""
    before = (folder / CURRENT).resolve()
    draft = folder / f".{CURRENT}-{build.name}"
    draft.symlink_to(build.name)
    draft.replace(folder / CURRENT)
    for other in folder.glob("build-*"):
        if other.resolve() not in (build.resolve(), before):
            shutil.rmtree(other)
