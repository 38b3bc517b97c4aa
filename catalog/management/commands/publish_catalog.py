"""Publishes the catalog again, for a Redis that lost it while no gateway was running."""

from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError

from catalog import registry


class Command(BaseCommand):
    help = "Publish the catalog in the database to gateways and workers."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.stdout.write(f"published as version {registry.publish()}")
        except redis.RedisError as error:
            raise CommandError(f"Redis cannot be reached ({type(error).__name__}); check SHOAL_REDIS_URL.") from None
