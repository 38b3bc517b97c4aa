"""The environment is read strictly: a bad value ends the start with one sentence naming its variable."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from project import env

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set SHOAL_X for this test."""
    return lambda value: monkeypatch.setenv("SHOAL_X", value)


Given = Callable[[str], None]

GOOD: list[tuple[str, Callable[[], Any], Any]] = [
    ("a b", lambda: env.text("SHOAL_X", ""), "a b"),
    ("b", lambda: env.choice("SHOAL_X", "a", ("a", "b")), "b"),
    ("cuda:1", lambda: env.matching("SHOAL_X", "cpu", r"cuda:\d", "a device"), "cuda:1"),
    ("YES", lambda: env.flag("SHOAL_X", False), True),
    ("0", lambda: env.flag("SHOAL_X", True), False),
    ("12", lambda: env.integer("SHOAL_X", 1), 12),
    ("2.5", lambda: env.seconds("SHOAL_X", 1), 2.5),
    ("1024", lambda: env.byte_count("SHOAL_X", None), 1024),
    ("8G", lambda: env.byte_count("SHOAL_X", None), 8 << 30),
    ("8 GiB", lambda: env.byte_count("SHOAL_X", None), 8 << 30),
    ("512mb", lambda: env.byte_count("SHOAL_X", None), 512 << 20),
    ("a, b,,c ", lambda: env.words("SHOAL_X", ()), ["a", "b", "c"]),
    ("/srv/models", lambda: env.folder("SHOAL_X", None), Path("/srv/models")),
    ("redis://h:1/2", lambda: env.url("SHOAL_X", "", ("redis",)), "redis://h:1/2"),
]


@pytest.mark.parametrize(("value", "read", "expected"), GOOD, ids=[case[0] for case in GOOD])
def test_values_are_read_with_their_type(given: Given, value: str, read: Callable[[], Any], expected: Any) -> None:
    given(value)

    assert read() == expected


@pytest.mark.parametrize("value", ["", "   "])
def test_an_empty_variable_counts_as_unset(given: Given, value: str) -> None:
    given(value)

    assert env.integer("SHOAL_X", 7) == 7
    assert env.flag("SHOAL_X", True)
    assert env.words("SHOAL_X", ["a"]) == ["a"]


BAD: list[tuple[str, Callable[[], Any], str]] = [
    ("c", lambda: env.choice("SHOAL_X", "a", ("a", "b")), "SHOAL_X must be one of a, b, not 'c'."),
    ("gpu", lambda: env.matching("SHOAL_X", "", r"cpu", "a device"), "SHOAL_X must be a device, not 'gpu'."),
    ("maybe", lambda: env.flag("SHOAL_X", False), "SHOAL_X must be 1 or 0, not 'maybe'."),
    ("1.5", lambda: env.integer("SHOAL_X", 1), "SHOAL_X must be a whole number, not '1.5'."),
    ("-1", lambda: env.integer("SHOAL_X", 1), "SHOAL_X must be at least 0, not '-1'."),
    ("soon", lambda: env.seconds("SHOAL_X", 1), "SHOAL_X must be a number of seconds, not 'soon'."),
    ("0", lambda: env.seconds("SHOAL_X", 1), "SHOAL_X must be more than 0 seconds, not '0'."),
    ("nan", lambda: env.seconds("SHOAL_X", 1), "SHOAL_X must be more than 0 seconds, not 'nan'."),
    ("lots", lambda: env.byte_count("SHOAL_X", 1), "SHOAL_X must be a number of bytes such as 8589934592 or 8GiB"),
    ("0G", lambda: env.byte_count("SHOAL_X", 1), "SHOAL_X must be a number of bytes"),
    (str(ROOT / "manage.py"), lambda: env.folder("SHOAL_X", None), "SHOAL_X must be a folder, but"),
    ("h:6379", lambda: env.url("SHOAL_X", "", ("redis", "amqp")), "SHOAL_X must be a URL starting with redis:// or"),
    ("redis://h:x/0", lambda: env.url("SHOAL_X", "", ("redis",)), "SHOAL_X is not a valid URL"),
    ("mysql://h/db", lambda: env.database("SHOAL_X", Path("/x")), "SHOAL_X must be a URL starting with sqlite://"),
    ("sqlite:///data.db", lambda: env.database("SHOAL_X", Path("/x")), "SHOAL_X must name a file by its absolute path"),
    ("postgres://h:1", lambda: env.database("SHOAL_X", Path("/x")), "SHOAL_X must name a database"),
    ("short", lambda: env.secret("SHOAL_X", Path("/x")), "SHOAL_X must have at least 32 characters"),
]


@pytest.mark.parametrize(("value", "read", "expected"), BAD, ids=[case[0] for case in BAD])
def test_a_bad_value_is_named_with_its_variable(
    given: Given, value: str, read: Callable[[], Any], expected: str
) -> None:
    given(value)

    with pytest.raises(env.BadSetting) as caught:
        read()
    assert str(caught.value).startswith(expected)


def test_the_password_of_a_bad_url_is_not_shown(given: Given) -> None:
    given("amqp:/user:canary@host")

    with pytest.raises(env.BadSetting) as caught:
        env.url("SHOAL_X", "", ("amqp",))
    assert "canary" not in str(caught.value)


def test_a_postgres_url_is_taken_apart(given: Given) -> None:
    given("postgres://me:p%40ss@db.example:5433/shoal?sslmode=require")

    database = env.database("SHOAL_X", Path("/x"))

    parts = [database[key] for key in ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD")]
    assert parts == ["django.db.backends.postgresql", "shoal", "db.example", "5433", "me", "p@ss"]
    assert database["OPTIONS"]["sslmode"] == "require"  # type: ignore[index]


def test_a_sqlite_url_names_its_file(given: Given) -> None:
    given("sqlite:////var/lib/a%20b/shoal.db")

    assert env.database("SHOAL_X", Path("/x"))["NAME"] == "/var/lib/a b/shoal.db"


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "secret_key"

    first, second = env.secret("SHOAL_X", path), env.secret("SHOAL_X", path)

    assert first == second
    assert len(first) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(env.BadSetting, match=r"SHOAL_X asks for the folder .*/file/data, which cannot be made"):
        env.make_folder("SHOAL_X", tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SHOAL_REQUIRE_KEY", "SHOAL_REQUIRE_KEYS"),
        ("SHOAL_REDIS", "SHOAL_REDIS_URL"),
        ("SHOAL_ALOWED_HOSTS", "SHOAL_ALLOWED_HOSTS"),
    ],
)
def test_a_near_miss_of_a_setting_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    env.text(meant, "")
    monkeypatch.setenv(name, "1")

    with pytest.raises(env.BadSetting, match=f"{name} is not a setting; did you mean {meant}"):
        env.refuse_near_misses()


def test_variables_of_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    env.text("SHOAL_REQUIRE_KEYS", "")
    monkeypatch.setenv("SHOAL_REQUIRE_SERVICES", "1")
    monkeypatch.setenv("SHOALS_OF_FISH", "1")

    env.refuse_near_misses()


def start(role: str, data: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Load the settings of a role as a process does, and print the modules it has then."""
    code = "import django, sys; django.setup(); print(*sorted(sys.modules), sep='\\n')"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    given = {"DJANGO_SETTINGS_MODULE": f"project.settings.{role}", "SHOAL_DATA": str(data), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=bare | given, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("role", ["gateway", "worker"])
def test_a_bad_value_ends_the_start_with_one_sentence(role: str, tmp_path: Path) -> None:
    done = start(role, tmp_path, SHOAL_VISIBILITY_S="soon")

    assert done.returncode == 1
    assert done.stderr == "SHOAL_VISIBILITY_S must be a number of seconds, not 'soon'.\n"


def test_a_gateway_loads_no_torch(tmp_path: Path) -> None:
    modules = start("gateway", tmp_path).stdout.split()

    assert "rest_framework" in modules
    assert not {"torch", "transformers", "workers"} & set(modules)


def test_a_worker_needs_neither_database_nor_rest_framework_nor_a_data_folder(tmp_path: Path) -> None:
    modules = start("worker", tmp_path / "data").stdout.split()

    assert "django" in modules
    assert not {"rest_framework", "django.contrib.admin", "catalog.models", "sqlite3"} & set(modules)
    assert not (tmp_path / "data").exists()
