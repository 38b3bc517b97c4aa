from typing import Any

import pytest

from protocol import names
from protocol.errors import InvalidInput
from protocol.messages import Request, celery_headers
from workers.headers import nominal_request, read_request

REQUEST = Request(
    id="r1",
    primitive="encode",
    model="org/name",
    digest="d1",
    cost=7,
    count=2,
    deadline=2.0,
    published=1.0,
    reply=names.mailbox("g1"),
)


def headers(**changes: Any) -> dict[str, Any]:
    written = celery_headers(REQUEST, "test")
    written["shoal"] |= changes
    return written


def test_what_a_gateway_writes_is_read_back() -> None:
    assert read_request(headers(), "shoal.encode") == REQUEST


def test_a_message_without_our_header_is_a_plain_clients() -> None:
    assert read_request({"id": "x", "task": "shoal.encode"}, "shoal.encode") is None


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"cost": -1}, "shoal.cost"),
        ({"cost": 1.5}, "shoal.cost"),
        ({"deadline": None}, "shoal.deadline"),
        ({"digest": 3}, "shoal.digest"),
        ({"lane": "express"}, "shoal.lane"),
        ({"primitive": "paint"}, "shoal.primitive"),
        ({"reply": "celery-task-meta-x"}, "shoal.reply"),
        ({"store": "yes"}, "shoal.store"),
        ({"unheard": 1}, "shoal"),
    ],
)
def test_a_header_that_is_not_ours_is_refused(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_request(headers(**changes), "shoal.encode")
    assert refused.value.param == param


def test_a_header_of_another_task_is_refused() -> None:
    with pytest.raises(InvalidInput):
        read_request(headers(), "shoal.score")


@pytest.mark.parametrize("request_id", [None, "", 5, "x" * 129])
def test_an_id_that_cannot_be_answered_is_refused(request_id: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_request(headers() | {"id": request_id}, "shoal.encode")
    assert refused.value.param == "id"


def test_eta_is_refused_even_with_a_good_header() -> None:
    with pytest.raises(InvalidInput, match="eta"):
        read_request(headers() | {"eta": "2030-01-01T00:00:00"}, "shoal.encode")


def test_a_stand_in_answers_where_the_header_says() -> None:
    stand_in = nominal_request(headers(cost="much"), "shoal.encode")
    assert (stand_in.id, stand_in.reply, stand_in.store) == ("r1", REQUEST.reply, False)


def test_a_stand_in_is_stored_where_no_mailbox_is_named() -> None:
    stand_in = nominal_request({"id": "r1", "shoal": {"reply": "any key"}}, "shoal.encode")
    assert (stand_in.reply, stand_in.store) == (None, True)
