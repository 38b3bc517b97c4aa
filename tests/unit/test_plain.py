from typing import Any

import pytest

from catalog.snapshot import Model, Snapshot
from protocol.errors import InvalidInput, ModelNotFound
from protocol.spec import ModelSpec
from workers.plain import Translated, translate

SPEC = ModelSpec("org/name", "fake", ("encode",), outputs=("dense",), dims={"dense": 8}, matryoshka=(4,), pool="other")
CATALOG = Snapshot(1, (Model(SPEC, {"default": {}, "short": {"dimensions": 4}}, aliases=("nick",)),))


def translated(headers: dict[str, Any] | None = None, **arguments: Any) -> Translated:
    given = {"model": "org/name", "items": [{"text": "hi"}], "options": {}} | arguments
    return translate({"id": "r1", "task": "shoal.encode", **(headers or {})}, given, CATALOG, ttl_s=60)


def test_a_task_becomes_a_stored_request_of_its_models_queue() -> None:
    found = translated()
    assert (found.request.id, found.request.digest, found.request.store) == ("r1", SPEC.digest, True)
    assert (found.queue, found.pool) == ("shoal.other.org__name.interactive", "other")


def test_items_may_be_bare_strings() -> None:
    assert translated(items=["hi", "there"]).payload.items == [{"text": "hi"}, {"text": "there"}]


def test_options_are_resolved_against_the_profile() -> None:
    assert translated(model="nick:short").payload.options["dimensions"] == 4


def test_the_profile_option_picks_a_profile() -> None:
    found = translated(options={"profile": "short"})
    assert (found.payload.options["dimensions"], found.request.model) == (4, "org/name:short")


def test_cost_grows_with_length() -> None:
    assert translated(items=["word " * 100]).request.cost > translated().request.cost


def test_expires_is_the_deadline_when_it_is_nearer() -> None:
    assert translated({"expires": "2001-01-01T00:00:00+00:00"}).request.deadline == 978307200.0


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"model": None}, "model"),
        ({"items": "hi"}, "items"),
        ({"items": [{"text": 5}]}, "items[0].text"),
        ({"options": "none"}, "options"),
        ({"options": {"dimensions": 3}}, "options.dimensions"),
        ({"options": {"profile": "long"}}, "options.profile"),
        ({"texts": ["hi"]}, "kwargs"),
    ],
)
def test_a_mistake_names_its_argument(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        translated(**arguments)
    assert refused.value.param == param


def test_a_bad_expires_is_named() -> None:
    with pytest.raises(InvalidInput) as refused:
        translated({"expires": "soon"})
    assert refused.value.param == "expires"


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="did you mean org/name"):
        translated(model="org/nam")
