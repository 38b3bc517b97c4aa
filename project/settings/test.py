"""What the tests run with: the gateway's apps, a database in memory, and no server unless a test brings one.

`SHOAL_DATABASE_URL` runs them on another database (in a test database of its own, as Django does).
"""

import atexit
import os
import tempfile

if "SHOAL_DATA" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="shoal-test-")
    atexit.register(_folder.cleanup)
    os.environ["SHOAL_DATA"] = _folder.name
os.environ.setdefault("SHOAL_SECRET_KEY", "only-for-tests-" + "0123456789" * 4)

from project.settings.gateway import *  # noqa: F403  # the environment comes first
from project.settings.gateway import SHOAL_DATABASE

# Nobody listens on port 1: a test that needs Redis sets the URL of its own, and none meets the machine's by accident.
SHOAL_REDIS_URL = SHOAL_BROKER_URL = CELERY_BROKER_URL = CELERY_RESULT_BACKEND = "redis://127.0.0.1:1/0"
DATABASES = {
    "default": SHOAL_DATABASE
    if "SHOAL_DATABASE_URL" in os.environ
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
    }
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
