"""The Celery app. Every role shares it; only a process started with the worker's settings becomes a device worker."""

import os
import secrets
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, setup_logging

WORKER_SETTINGS = "project.settings.worker"
WORKER_CONSUMER = "workers.consumer:Consumer"
WORKER_POOL = "workers.pool:TaskPool"

app = Celery("shoal")
app.config_from_object("django.conf:settings", namespace="CELERY")


@setup_logging.connect  # type: ignore[untyped-decorator]  # celery has no types
def _leave_logging_to_django(**_: Any) -> None:
    """With a receiver here Celery does not set up logging; `settings.LOGGING` holds."""


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _become_device_worker(instance: Any, options: Mapping[str, Any], **_: Any) -> None:
    """Runs in `celery worker` alone, before it looks at the broker; the ops worker has a consumer of its own."""
    if instance.app.conf.worker_consumer == WORKER_CONSUMER:
        _refuse_other_pools(options.get("pool_cls") or options.get("pool") or WORKER_POOL)
        from workers import bootstrap

        bootstrap.install()


def _refuse_other_pools(asked: Any) -> None:
    """Celery takes `-P prefork`, its own default, for no wish at all; every other one would run without our parts."""
    name = asked if isinstance(asked, str) else f"{asked.__module__}:{asked.__qualname__}"
    if name != WORKER_POOL:
        raise SystemExit(
            f"A device worker cannot run on the pool {name}: its engines are processes that it starts itself. "
            "Leave out -P / --pool."
        )


def worker_argv(worker_id: str) -> list[str]:
    """The command line of a device worker, after the interpreter; run it with `worker_environment`."""
    # A node name must be new at every start: RabbitMQ keeps a lost worker's exclusive queue under it for a while.
    node = f"{worker_id}.{secrets.token_hex(2)}@%h"
    return ["-m", "celery", "-q", "-A", "project", "worker", "-n", node]


def worker_environment(worker_id: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a device worker needs in its environment, on top of `environment` (default: this process's own)."""
    base = os.environ if environment is None else environment
    return {**base, "DJANGO_SETTINGS_MODULE": WORKER_SETTINGS, "SHOAL_WORKER_ID": worker_id}
