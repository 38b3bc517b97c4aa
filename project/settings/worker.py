"""A device worker: no database, no URLs, no REST framework. It learns the catalog from Redis."""

import secrets

from project.settings.base import *  # noqa: F403  # the roles share one base
from project.settings.base import CELERY_BROKER_TRANSPORT_OPTIONS as _TRANSPORT_OPTIONS

SECRET_KEY = secrets.token_urlsafe(48)  # Django wants one; a worker signs nothing

CELERY_IMPORTS = ["workers.strategy"]
CELERY_WORKER_CONSUMER = "workers.consumer:Consumer"
CELERY_WORKER_POOL = "workers.pool:TaskPool"
CELERY_WORKER_CONCURRENCY = 1
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False  # what runs is answered, connection or not
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_RATE_LIMITS = True
CELERY_WORKER_ENABLE_PREFETCH_COUNT_REDUCTION = False  # reconnecting must not change prefetch behind our back
CELERY_TASK_CREATE_MISSING_QUEUES = False  # a typing mistake must not become a queue
# The Hub publishes events only, and waiting there for a confirm that never comes would stop all else it does.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    name: value for name, value in _TRANSPORT_OPTIONS.items() if name != "confirm_publish"
}
