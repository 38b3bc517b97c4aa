"""Shipped entries of rerankers and classifiers say what their families understand."""

import pytest

from catalog import loader
from catalog.snapshot import Model
from workers.families import causal_reranker, text_classifier
from workers.layers import checkpoint

READ = {
    "cross_encoder": {"dtype"},
    "causal_reranker": set(causal_reranker.LOAD_OPTIONS),
    "text_classifier": {"dtype", *text_classifier.LOAD_OPTIONS},
}
ENTRIES = {
    entry.model.spec.model: entry.model for entry in loader.load([loader.ENTRIES]) if entry.model.spec.family in READ
}


@pytest.mark.parametrize("model", ENTRIES.values(), ids=ENTRIES)
def test_load_options_are_ones_the_family_has(model: Model) -> None:
    load = model.spec.load
    assert load.keys() <= READ[model.spec.family]
    assert load.get("dtype", "float32") in checkpoint.DTYPES
    assert load.get("format", "qwen3") in causal_reranker.FORMATS
    assert "{}" in load.get("hypothesis_template", "{}")


@pytest.mark.parametrize("model", ENTRIES.values(), ids=ENTRIES)
def test_nothing_of_a_repository_runs(model: Model) -> None:
    assert not model.spec.remote_code
    assert model.spec.source.repo == model.spec.model


def test_every_family_has_an_entry() -> None:
    assert {model.spec.family for model in ENTRIES.values()} == READ.keys()
