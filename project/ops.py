"""Housekeeping: ordinary Celery tasks on the `ops` queue, run by one worker that also is the clock (deploy: `ops`)."""

from celery import shared_task
from django.core.management import call_command


@shared_task(name="ops.clear_sessions")  # type: ignore[untyped-decorator]  # celery has no types
def clear_sessions() -> None:
    """Sessions of the admin site that have expired; Django keeps them until told."""
    call_command("clearsessions")
