"""What an ASGI server runs: `uvicorn project.asgi:application`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings.gateway")
django.setup(set_prefix=False)

from project.application import Application  # noqa: E402  # it needs models, which exist only after the setup

application = Application()
