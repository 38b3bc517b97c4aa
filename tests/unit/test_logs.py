"""Log lines: one line, a phrase, then fields."""

import logging

import pytest

from protocol.log_lines import FieldFormatter


def line(message: str, **fields: object) -> str:
    record = logging.makeLogRecord({"name": "shoal.test", "levelname": "INFO", "msg": message, **fields})
    return FieldFormatter().format(record)


def test_a_line_ends_in_its_fields() -> None:
    assert line("catalog published", version=17, models=24).endswith(
        " INFO shoal.test catalog published version=17 models=24"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [("two words", "'two words'"), ("a\nb", r"'a\nb'"), ("", "''"), ('say "x"', "'say \"x\"'"), (None, "None")],
)
def test_a_value_stays_one_word_on_one_line(value: object, shown: str) -> None:
    assert line("event", field=value).endswith(f" event field={shown}")


def test_the_request_that_django_adds_is_not_shown() -> None:
    """Its query string may hold a key."""
    assert line("Not Found: /x", status_code=404, request="GET /x?api_key=sk-canary").endswith(" status_code=404")
