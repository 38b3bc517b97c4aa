"""The environment, read with types: a value that makes no sense stops the start with one sentence naming it."""

import contextlib
import difflib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

PREFIX = "SHOAL_"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_BYTES = re.compile(r"(?P<count>\d+)\s*(?P<unit>|[kmgt]i?b?)", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DATABASES = ("sqlite", "postgres", "postgresql")

_read: set[str] = set()


class BadSetting(SystemExit):
    """Ends the process with the sentence on stderr and status 1, without a traceback."""


def _raw(name: str) -> str | None:
    """An empty variable counts as unset: that is what compose files and charts produce for "not given"."""
    _read.add(name)
    return os.environ.get(name, "").strip() or None


def text(name: str, default: str) -> str:
    return _raw(name) or default


def choice(name: str, default: str, options: Sequence[str]) -> str:
    value = text(name, default)
    if value not in options:
        raise BadSetting(f"{name} must be one of {', '.join(options)}, not {value!r}.")
    return value


def matching(name: str, default: str, pattern: str, wanted: str) -> str:
    value = text(name, default)
    if not re.fullmatch(pattern, value):
        raise BadSetting(f"{name} must be {wanted}, not {value!r}.")
    return value


def flag(name: str, default: bool) -> bool:
    value = _raw(name)
    if value is None:
        return default
    if value.lower() not in _TRUE + _FALSE:
        raise BadSetting(f"{name} must be 1 or 0, not {value!r}.")
    return value.lower() in _TRUE


def integer(name: str, default: int, *, least: int = 0) -> int:
    value = _raw(name)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise BadSetting(f"{name} must be a whole number, not {value!r}.") from None
    if number < least:
        raise BadSetting(f"{name} must be at least {least}, not {value!r}.")
    return number


def seconds(name: str, default: float) -> float:
    value = _raw(name)
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        raise BadSetting(f"{name} must be a number of seconds, not {value!r}.") from None
    if not 0 < number < 1e9:  # also refuses nan
        raise BadSetting(f"{name} must be more than 0 seconds, not {value!r}.")
    return number


def byte_count(name: str, default: int | None) -> int | None:
    """A plain count or one with a unit, every unit a power of 1024: `8589934592`, `8G`, `8GiB`."""
    value = _raw(name)
    if value is None:
        return default
    match = _BYTES.fullmatch(value)
    if match is None or int(match["count"]) == 0:
        raise BadSetting(f"{name} must be a number of bytes such as 8589934592 or 8GiB, not {value!r}.")
    unit: int = 1024 ** _POWER[match["unit"][:1].lower()]
    return int(match["count"]) * unit


def words(name: str, default: Sequence[str]) -> list[str]:
    """A comma-separated list."""
    value = _raw(name)
    if value is None:
        return list(default)
    return [word.strip() for word in value.split(",") if word.strip()]


def folder(name: str, default: Path | None) -> Path | None:
    """An absolute path, `~` expanded. It need not exist yet, but must not be a file."""
    value = _raw(name)
    if value is None:
        return default
    path = Path(value).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise BadSetting(f"{name} must be a folder, but {str(path)!r} is a file.")
    return path


def url(name: str, default: str, schemes: Sequence[str]) -> str:
    value = text(name, default)
    scheme = value.partition("://")[0]
    if scheme not in schemes or "://" not in value:
        raise BadSetting(f"{name} must be a URL starting with {_any_of(schemes)}.")
    try:
        _ = urlsplit(value).port
    except ValueError as error:
        raise BadSetting(f"{name} is not a valid URL: {error}.") from None
    return value


def database(name: str, default: Path) -> dict[str, object]:
    """A Django database from `sqlite:////path/file` or `postgres://user:password@host:port/name?option=value`."""
    if _raw(name) is None:
        return _sqlite(str(default))
    parts = urlsplit(url(name, "", _DATABASES))
    database_name = unquote(parts.path)
    if parts.scheme == "sqlite":
        if parts.netloc or not database_name.startswith("//"):
            raise BadSetting(f"{name} must name a file by its absolute path, as in sqlite:////var/lib/shoal/shoal.db.")
        return _sqlite(database_name[1:])
    if len(database_name) < 2:
        raise BadSetting(f"{name} must name a database, as in postgres://user:password@host:5432/shoal.")
    return _postgres(database_name[1:], parts.hostname, parts.port, parts.username, parts.password, parts.query)


def make_folder(name: str, path: Path) -> None:
    """Make `path`, which the variable `name` asked for."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"{name} asks for the folder {path}, which cannot be made: {error.strerror}.") from None


def _sqlite(path: str) -> dict[str, object]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "timeout": 20,
            # Readers never wait for the writer, and a transaction that will write says so when it begins:
            # without that, two of them meet in "database is locked" instead of queueing.
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;",
        },
    }


def _postgres(
    name: str, host: str | None, port: int | None, user: str | None, password: str | None, query: str
) -> dict[str, object]:
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "HOST": host or "",
        "PORT": str(port or ""),
        "USER": unquote(user or ""),
        "PASSWORD": unquote(password or ""),
        "CONN_MAX_AGE": 0,
        # Threads come and go under ASGI, so connections belong to a pool rather than to a thread.
        "OPTIONS": {**dict(parse_qsl(query)), "pool": {"min_size": 0, "max_size": 8, "timeout": 10}},
    }


def secret(name: str, path: Path) -> str:
    """The variable, else the secret kept in `path`, made on first use and readable by its owner alone."""
    given = _raw(name)
    if given is not None:
        if len(given) < 32:
            raise BadSetting(f"{name} must have at least 32 characters; unset it to have one made.")
        return given
    try:
        return _kept_secret(path)
    except OSError as error:
        raise BadSetting(
            f"The secret in {path} can be neither read nor made ({error.strerror}): set {name} or SHOAL_DATA."
        ) from None


def _kept_secret(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(48))
    # Linking fails if another process was first, whose secret then counts for both.
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    return path.read_text().strip()


def refuse_near_misses() -> None:
    """Stop on a variable that all but spells a setting: SHOAL_REQUIRE_KEY would otherwise leave the door open.

    Call it after every setting was read. Variables that resemble none are left to other programs.
    """
    for name in sorted(os.environ):
        if not name.startswith(PREFIX) or name in _read:
            continue
        near = difflib.get_close_matches(name, _read, n=1, cutoff=0.83)
        if near:
            raise BadSetting(f"{name} is not a setting; did you mean {near[0]}?")


def _any_of(schemes: Sequence[str]) -> str:
    return " or ".join(f"{scheme}://" for scheme in schemes)
