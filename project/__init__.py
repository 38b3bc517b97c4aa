"""Wires the roles together: settings, URLs, the Celery app, the command line."""

# Without this import a `shared_task` would bind to an app that knows no broker.
from project.celery import app as celery_app

__all__ = ["celery_app"]
