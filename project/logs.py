"""Django's LOGGING, for gateways and workers; how a line looks is in `protocol.log_lines`."""

from protocol.log_lines import FieldFormatter


def config(level: str) -> dict[str, object]:
    """Django's LOGGING: everything to stderr; libraries that chat at INFO speak from WARNING on."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"fields": {"()": FieldFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "fields"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django's own handlers would print every line a second time.
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            "django.db.backends": {"level": "INFO"},  # at DEBUG it prints rows
            "django.security.DisallowedHost": {"level": "CRITICAL"},  # a traceback for every scan of a port
            **{name: {"level": "WARNING"} for name in ("amqp", "kombu", "urllib3", "filelock", "httpx", "httpcore")},
        },
    }
