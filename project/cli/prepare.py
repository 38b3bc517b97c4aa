"""What must be done to the database before roles start: migrate, sync the catalog, make the first admin.

    python -m project.cli.prepare

Its own process, so that the launcher stays small. Prints one line of JSON: either `error`, a sentence, or `keys`, how
many API keys there are, and on a new database `password` of the user `username`.
"""

import io
import json
import os
import sys
from typing import Any

import django
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor


class Broken(Exception):
    """A sentence for the person who starts it."""


def main() -> int:
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings.gateway"
    django.setup()
    try:
        result = _prepare()
    except (Broken, DatabaseError, CommandError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        where = "" if isinstance(error, Broken | CommandError) else f"The database {_database()} cannot be used: "
        result = {"error": where + "\n".join(line.strip() for line in lines)}
    print(json.dumps(result))
    return 1 if "error" in result else 0


def _prepare() -> dict[str, Any]:
    from catalog import issuing

    _reach()
    _migrate()
    call_command("sync_catalog", verbosity=0, stdout=sys.stderr)
    answer = io.StringIO()
    call_command("ensure_admin", stdout=answer)
    return {**json.loads(answer.getvalue()), "keys": len(issuing.read_keys())}


def _reach() -> None:
    """Connect once beside the pool, which would hide the reason behind a time-out of its own."""
    if connection.vendor != "postgresql":
        return
    import psycopg

    parameters = connection.get_connection_params()
    plain = {name: parameters[name] for name in ("host", "port", "user", "password", "dbname") if parameters.get(name)}
    try:
        psycopg.connect(**plain, connect_timeout=5).close()
    except psycopg.OperationalError as error:
        raise Broken(f"The database {_database()} cannot be used: {str(error).strip().splitlines()[0]}.") from None


def _migrate() -> None:
    """Only when there is something to apply: finding out is faster than doing nothing thoroughly."""
    executor = MigrationExecutor(connection)
    unknown = {name for name in executor.loader.applied_migrations if name not in executor.loader.disk_migrations}
    if any(app in executor.loader.migrated_apps for app, _ in unknown):
        names = ", ".join(sorted(f"{app}.{name}" for app, name in unknown if app in executor.loader.migrated_apps))
        raise Broken(
            f"The database {_database()} is of a newer version of Shoal (it has {names}): update the checkout."
        )
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", interactive=False, verbosity=0)


def _database() -> str:
    """Without the password."""
    settings = connection.settings_dict
    host = settings.get("HOST")
    return f"{host}:{settings.get('PORT') or 5432}/{settings['NAME']}" if host else str(settings["NAME"])


if __name__ == "__main__":
    sys.exit(main())
