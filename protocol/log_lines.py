"""How a log line looks: time, level, logger, a short event phrase, then the fields given as `extra`."""

import logging

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
_UNSHOWN = {*_STANDARD, "request"}  # Django's: with a query string, in which callers put keys


class FieldFormatter(logging.Formatter):
    """`2026-11-30T20:05:12 INFO shoal.catalog catalog published version=17 models=24`."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _UNSHOWN}
        return super().formatMessage(record) + "".join(f" {name}={_shown(value)}" for name, value in fields.items())


def _shown(value: object) -> str:
    """A value on one line, quoted when it would read as more than one word."""
    plain = str(value)
    return plain if plain and plain.isprintable() and not set(plain) & set(' "=') else repr(plain)
