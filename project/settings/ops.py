"""The ops worker: the gateway's settings, the housekeeping tasks and when they run."""

from celery.schedules import crontab

from project.settings.gateway import *  # noqa: F403  # it works on the gateway's database

CELERY_IMPORTS = ["project.ops"]
CELERY_BEAT_SCHEDULE = {"clear sessions": {"task": "ops.clear_sessions", "schedule": crontab(hour="4", minute="17")}}
