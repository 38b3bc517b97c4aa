"""Beats are read without trust: one that cannot be read is none, and hides no other."""

import math
from typing import Any

import orjson
import pytest

from protocol import beats

BEAT: dict[str, Any] = {
    "id": "w1",
    "pool": "default",
    "memory": {"capacity": 10, "used": 3.5},
    "engines": [{"bundle": "base", "pid": 4, "state": "running"}],
    "models": [
        {"model": "org/a", "digest": "d", "state": "loaded", "rate": None, "error": None, "oldest": {"bulk": 1.5}}
    ],
    "counters": {"items": 7},
    "queues": {"q": {"items": 1, "cost": 2}},
    "of_a_later_version": [1, {"x": None}],
}


def test_a_beat_is_read_as_it_was_written() -> None:
    assert beats.read(beats.write(BEAT)) == BEAT


def test_little_is_a_beat_too() -> None:
    assert beats.read(b'{"id":"w"}') == {"id": "w"}


def test_numbers_that_json_lacks_leave_a_beat_readable() -> None:
    written = beats.write({"id": "w", "models": [{**BEAT["models"][0], "rate": math.inf}]})
    assert beats.read(written) is not None


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"null", b"3", b"[]", b"{}", b'{"id":7}', b'{"id":"w","pool":NaN}'],
)
def test_what_is_no_beat_is_none(raw: bytes) -> None:
    assert beats.read(raw) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"pool": []},
        {"clock_ahead_s": "300"},
        {"memory": 3},
        {"memory": {"used": "much"}},
        {"engines": 4},
        {"engines": ["base"]},
        {"models": 3},
        {"models": [3]},
        {"models": [{}]},
        {"models": [{"model": "a", "digest": [], "state": "loaded"}]},
        {"models": [{"model": "a", "digest": "d", "state": []}]},
        {"models": [{"model": "a", "digest": "d", "state": "failed", "error": "broken"}]},
        {"models": [{"model": "a", "digest": "d", "state": "loading", "progress": "half"}]},
        {"counters": []},
        {"counters": {"items": None}},
        {"queues": {"q": 1}},
        {"queues": {"q": {"cost": "1"}}},
        {"thrashing": [1]},
    ],
)
def test_a_beat_of_another_shape_is_none(wrong: dict[str, Any]) -> None:
    assert beats.read(orjson.dumps({**BEAT, **wrong})) is None
