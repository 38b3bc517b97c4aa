"""Flower's options, read by `celery -A project flower --conf=project/flowerconfig.py`; a flag after it wins.

Flower looks on and may change nothing. It shows each task's model and item count, which is all a gateway puts into
a message's `argsrepr`; arguments of other Celery clients are never shown, because they hold their texts.
"""

import ipaddress
from typing import Any

from django.conf import settings

from project.celery import app
from protocol.messages import TASK_PREFIX

# Flower asks a worker nine questions at once, and each takes two connections from the pool: with fewer it stands still.
app.conf.broker_pool_limit = 32


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def format_task(task: Any) -> Any:
    """A copy of Celery's task record without what a caller sent or got."""
    task.kwargs = ""
    if task.name and task.name.startswith(TASK_PREFIX):
        task.result = ""
    return task


if not _is_loopback(settings.SHOAL_FLOWER_HOST) and not settings.SHOAL_FLOWER_AUTH:
    raise SystemExit(
        f"Flower would listen on {settings.SHOAL_FLOWER_HOST} without a password: "
        "set SHOAL_FLOWER_AUTH to user:password, or SHOAL_FLOWER_HOST to 127.0.0.1."
    )

address = settings.SHOAL_FLOWER_HOST
port = settings.SHOAL_FLOWER_PORT
basic_auth = [settings.SHOAL_FLOWER_AUTH] if settings.SHOAL_FLOWER_AUTH else []
read_only = True
tasks_columns = "name,args,state,received,runtime,worker,uuid"
natural_time = True
max_tasks = 10_000
purge_offline_workers = 60
