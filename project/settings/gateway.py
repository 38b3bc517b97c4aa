"""The gateway, the admin site, management commands and the ops worker: the roles that use the database."""

import hashlib
from pathlib import Path

from admin.theme import UNFOLD as UNFOLD  # a setting
from inference.remote_media import parse_origins
from project import env
from project.settings.base import *  # noqa: F403  # the roles share one base
from project.settings.base import (
    SHOAL_ALLOWED_HOSTS,
    SHOAL_DATA,
    SHOAL_DATABASE,
    SHOAL_MAX_BODY_BYTES,
    SHOAL_MEDIA_HOSTS,
    SHOAL_TRUSTED_ORIGINS,
)
from protocol.options import OVERFLOWS
from protocol.options.extract import LONG_TEXTS

try:
    SHOAL_MEDIA_ORIGINS = parse_origins(SHOAL_MEDIA_HOSTS)
except ValueError as error:
    raise env.BadSetting(f"SHOAL_MEDIA_HOSTS: {error}.") from None

SECRET_KEY = env.secret("SHOAL_SECRET_KEY", SHOAL_DATA / "secret_key")
DATABASES = {"default": SHOAL_DATABASE}
if str(SHOAL_DATABASE["ENGINE"]).endswith("sqlite3"):
    env.make_folder("SHOAL_DATABASE_URL", Path(str(SHOAL_DATABASE["NAME"])).parent)

INSTALLED_APPS = [
    "admin.apps.ConsoleConfig",  # before unfold and django.contrib.admin: its templates win
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "catalog",
    "inference",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"
STATIC_URL = "/static/"
ALLOWED_HOSTS = SHOAL_ALLOWED_HOSTS
CSRF_TRUSTED_ORIGINS = SHOAL_TRUSTED_ORIGINS
DATA_UPLOAD_MAX_MEMORY_SIZE = SHOAL_MAX_BODY_BYTES

# Browsers share cookies between the ports of one host; two installations side by side need names of their own.
_INSTALLATION = hashlib.sha256(SECRET_KEY.encode()).hexdigest()[:8]
SESSION_COOKIE_NAME = f"shoal_session_{_INSTALLATION}"
CSRF_COOKIE_NAME = f"shoal_csrf_{_INSTALLATION}"
SESSION_COOKIE_HTTPONLY = True

AUTHENTICATION_BACKENDS = ["admin.throttle.ThrottledBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "catalog.access.KeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["catalog.access.IsAdministrator"],
    "EXCEPTION_HANDLER": "catalog.access.answer_error",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["catalog.parsing.StrictJsonParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Shoal",
    "DESCRIPTION": "One backend for a whole fleet of small open models: encode, score, extract, generate.",
    "VERSION": "0.1.0",
    "ENUM_NAME_OVERRIDES": {"OverflowEnum": OVERFLOWS, "LongTextEnum": LONG_TEXTS},
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],  # open to all, so nobody's key is looked at
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}
