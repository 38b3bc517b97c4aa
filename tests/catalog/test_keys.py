"""API keys: how they look, who passes, what each may do."""

import hashlib
from typing import Any

import pytest

from catalog import keys
from catalog.keys import KeyRecord, KeySnapshot
from protocol.errors import Forbidden, Unauthorized

NEW = keys.generate()
NOW = 1_800_000_000.0


def record(**fields: Any) -> KeyRecord:
    return KeyRecord(prefix=NEW.prefix, digest=NEW.digest, name="test", lane="bulk", **fields)


def test_a_key_holds_its_prefix_and_a_long_secret() -> None:
    mark, product, prefix, secret = NEW.text.split("-", 3)

    assert (mark, product, prefix) == ("sk", "shoal", NEW.prefix)
    assert len(secret) == 43


def test_only_a_hash_of_the_secret_is_kept() -> None:
    secret = NEW.text.removeprefix(f"sk-shoal-{NEW.prefix}-")

    assert hashlib.sha256(secret.encode()).hexdigest() == NEW.digest
    assert secret not in repr(record())


def test_two_keys_share_nothing() -> None:
    other = keys.generate()

    assert (other.prefix, other.digest, other.text) != (NEW.prefix, NEW.digest, NEW.text)


def test_the_right_key_passes() -> None:
    assert keys.authenticate(KeySnapshot([record()]), NEW.text, NOW) == record()


WRONG = {
    "none": None,
    "empty": "",
    "another's form": "sk-1234567890",
    "unknown prefix": NEW.text.replace(NEW.prefix, "00000000"),
    "wrong secret": NEW.text[:-1] + ("a" if NEW.text[-1] != "a" else "b"),
    "shortened": NEW.text[:-1],
    "prefix alone": f"sk-shoal-{NEW.prefix}",
    "mark alone": "sk-shoal-",
    "without mark": NEW.text.removeprefix("sk-shoal-"),
    "digest for secret": f"sk-shoal-{NEW.prefix}-{NEW.digest}",
    "not UTF-8": f"sk-shoal-{NEW.prefix}-\udcff\ud800",
    "a megabyte": f"sk-shoal-{NEW.prefix}-" + "a" * 1_000_000,
}


@pytest.mark.parametrize("presented", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_key_is_refused(presented: str | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        keys.authenticate(KeySnapshot([record()]), presented, NOW)

    assert not presented or presented not in caught.value.message


def test_nothing_tells_an_unknown_prefix_from_a_wrong_secret() -> None:
    messages = set()
    for presented in (WRONG["unknown prefix"], WRONG["wrong secret"]):
        with pytest.raises(Unauthorized) as caught:
            keys.authenticate(KeySnapshot([record()]), presented, NOW)
        messages.add(caught.value.message)

    assert len(messages) == 1


def test_a_key_passes_until_it_expires() -> None:
    snapshot = KeySnapshot([record(expires=NOW)])

    assert keys.authenticate(snapshot, NEW.text, NOW - 1)
    with pytest.raises(Unauthorized, match="expired"):
        keys.authenticate(snapshot, NEW.text, NOW)


def test_a_key_without_limits_may_do_everything() -> None:
    record().permit("encode", "org/model")


def test_a_key_may_be_limited_to_primitives() -> None:
    limited = record(primitives=frozenset({"encode"}))

    limited.permit("encode", "org/model")
    with pytest.raises(Forbidden, match="may not call generate; it may call encode"):
        limited.permit("generate", "org/model")


def test_a_key_may_be_limited_to_models() -> None:
    limited = record(models=frozenset({"org/model"}))

    limited.permit("encode", "org/model")
    with pytest.raises(Forbidden) as caught:
        limited.permit("encode", "org/other")
    assert caught.value.param == "model"
