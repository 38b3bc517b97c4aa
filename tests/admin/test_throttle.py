"""Passwords cannot be guessed one after the other."""

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.fixtures import Settings

from admin import throttle

PASSWORD = "correct horse battery"

pytestmark = pytest.mark.usefixtures("db", "state")


@pytest.fixture(autouse=True)
def ada(db: None) -> User:
    return User.objects.create_superuser("ada", password=PASSWORD)


def login(password: str, name: str = "ada", address: str = "10.0.0.1") -> str:
    """In when the answer is empty."""
    response = Client(REMOTE_ADDR=address).post("/admin/login/?next=/admin/", {"username": name, "password": password})
    return "" if response.status_code == 302 else response.content.decode()


def guess(times: int, **where: str) -> None:
    for number in range(times):
        assert login(f"guess {number}", **where)


def test_a_few_wrong_passwords_do_no_harm() -> None:
    guess(throttle.MOST_BY_ACCOUNT - 1)

    assert login(PASSWORD) == ""


def test_an_account_closes_whatever_the_address_and_however_it_is_spelled() -> None:
    for number in range(throttle.MOST_BY_ACCOUNT):
        guess(1, name="ADA" if number % 2 else "ada", address=f"10.0.1.{number}")

    assert "Too many wrong passwords" in login(PASSWORD, address="10.0.2.1")


def test_other_accounts_stay_open() -> None:
    User.objects.create_superuser("bob", password=PASSWORD)
    guess(throttle.MOST_BY_ACCOUNT + 1)

    assert login(PASSWORD, name="bob") == ""


def test_an_address_closes_whatever_the_account() -> None:
    for number in range(throttle.MOST_BY_ADDRESS):
        guess(1, name=f"user {number}")

    assert "Too many wrong passwords" in login(PASSWORD)
    assert login(PASSWORD, address="10.0.0.2") == ""


def test_the_right_password_forgets_the_wrong_ones() -> None:
    guess(throttle.MOST_BY_ACCOUNT - 1)
    assert login(PASSWORD) == ""
    guess(throttle.MOST_BY_ACCOUNT - 1)

    assert login(PASSWORD) == ""


def test_it_opens_again_by_itself(state: "redis.Redis") -> None:
    guess(1)

    keys = state.keys("shoal:login:*")

    assert len(keys) == 2
    assert all(0 < state.ttl(key) <= throttle.WINDOW_S for key in keys)
    assert not any(b"ada" in key for key in keys)


def test_an_operator_gets_in_while_redis_is_away(settings: Settings) -> None:
    settings.SHOAL_REDIS_URL = "redis://127.0.0.1:1/0"

    assert login(PASSWORD) == ""
