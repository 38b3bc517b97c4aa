"""Makes the first user of the admin site."""

import json
import secrets
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand

USERNAME = "admin"


class Command(BaseCommand):
    help = "On a database without users, make one with a random password; print what was done as one line of JSON."

    def handle(self, *args: Any, **options: Any) -> None:
        users = get_user_model()
        if users.objects.exists():
            self.stdout.write(json.dumps({"created": False}))
            return
        password = secrets.token_urlsafe(12)
        users.objects.create_superuser(USERNAME, password=password)
        self.stdout.write(json.dumps({"created": True, "username": USERNAME, "password": password}))
