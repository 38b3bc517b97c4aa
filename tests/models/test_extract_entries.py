"""Shipped entries of models that extract from text say what their families understand."""

from typing import Any

import pytest

from catalog import loader
from catalog.snapshot import Model
from workers.families import family

FAMILIES = ("gliner", "gliner2", "gliclass", "token_classifier")
LOAD_OPTIONS = {
    "gliner": {"tokenizers", "merge_adjacent", "dtype"},
    "gliner2": {"dtype"},
    "gliclass": {"dtype"},
    "token_classifier": {"aggregation", "dtype"},
}
ENTRIES = {
    entry.model.spec.model: entry.model
    for entry in loader.load([loader.ENTRIES])
    if entry.model.spec.family in FAMILIES
}


@pytest.mark.parametrize("model", ENTRIES.values(), ids=ENTRIES)
def test_load_options_are_ones_the_family_has(model: Model) -> None:
    assert set(model.spec.load) <= LOAD_OPTIONS[model.spec.family]
    assert not model.spec.remote_code


@pytest.mark.parametrize("model", ENTRIES.values(), ids=ENTRIES)
def test_profiles_ask_for_what_the_family_reads(model: Model) -> None:
    code: Any = family(model.spec.family)

    asked = {name for options in model.profiles.values() for name in options}

    assert asked <= code.OPTIONS


def test_every_family_has_models() -> None:
    assert {model.spec.family for model in ENTRIES.values()} == set(FAMILIES)
