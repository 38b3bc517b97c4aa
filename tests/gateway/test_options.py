"""Options as both gateways and workers read them, on top of a profile's defaults."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import InvalidInput
from protocol.options import EncodeOptions, parse_encode_options
from tests.gateway.conftest import FAKE, MULTI, NESTED


@pytest.mark.parametrize(
    ("raw", "defaults", "expected"),
    [
        ({}, {}, EncodeOptions()),
        ({"is_query": None}, {"is_query": True}, EncodeOptions(is_query=True)),
        ({"is_query": False}, {"is_query": True}, EncodeOptions(is_query=False)),
        ({"output_dtype": "ubinary"}, {}, EncodeOptions(output_dtype="binary")),
        ({"overflow_policy": "truncate_text"}, {}, EncodeOptions(overflow="truncate")),
        ({"overflow_policy": "default"}, {"overflow": "error"}, EncodeOptions(overflow="truncate")),
        ({"prompt": ""}, {"prompt": "query: "}, EncodeOptions(prompt="")),
        ({"dimensions": 8}, {}, EncodeOptions(dimensions=None)),
        ({"dimensions": 4}, {}, EncodeOptions(dimensions=4)),
        ({"dimensions": 8}, {"dimensions": 4}, EncodeOptions(dimensions=None)),
        ({"output_types": ["dense", "dense"]}, {}, EncodeOptions()),
        ({"profile": "query"}, {}, EncodeOptions()),
    ],
)
def test_options_are_laid_over_defaults(raw: Any, defaults: Any, expected: EncodeOptions) -> None:
    assert parse_encode_options(raw, NESTED, defaults) == expected


def test_model_without_dense_gives_what_it_has() -> None:
    assert parse_encode_options({}, MULTI).output_types == ("sparse", "multivector")


def test_profile_bounds_the_outputs() -> None:
    with pytest.raises(InvalidInput, match="sparse"):
        parse_encode_options({"output_types": ["multivector"]}, MULTI, {"output_types": ["sparse"]})


def test_unknown_option_names_its_neighbour() -> None:
    with pytest.raises(InvalidInput, match="did you mean normalize") as caught:
        parse_encode_options({"normalise": True}, FAKE)
    assert caught.value.param == "options.normalise"


def test_error_names_the_place_the_caller_wrote() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_encode_options({"overflow_policy": "x"}, FAKE, paths={"overflow_policy": "params.overflow_policy"})
    assert caught.value.param == "params.overflow_policy"


@pytest.mark.parametrize("name", ["prompt", "instruction"])
def test_half_a_surrogate_pair_is_no_text(name: str) -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        parse_encode_options({name: "half \ud83d end"}, FAKE)


def test_wire_form_comes_back() -> None:
    options = parse_encode_options({"dimensions": 4, "is_query": True, "output_dtype": "int8"}, NESTED)
    assert EncodeOptions.from_wire(options.to_wire()) == options


@pytest.mark.parametrize(
    ("raw", "outputs", "muvera"),
    [
        ({"muvera": {}}, ("dense",), {}),
        ({"muvera": True, "output_types": ["multivector"]}, ("multivector",), {}),
        ({"muvera": {"dims": 512, "planes": 4}, "output_types": ["dense"]}, ("dense",), {"dims": 512, "planes": 4}),
    ],
)
def test_many_vectors_can_be_asked_for_as_one(raw: Any, outputs: Any, muvera: Any) -> None:
    options = parse_encode_options(raw, MULTI)
    assert (options.output_types, options.muvera) == (outputs, muvera)


@pytest.mark.parametrize(
    "value", [3, "yes", False, {"dims": 0}, {"dims": True}, {"planes": 11}, {"seed": 1}, {5: 1}, {"planes": 9}]
)
def test_a_shape_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_encode_options({"muvera": value}, MULTI)
    assert caught.value.param == "options.muvera"


def test_a_model_of_one_vector_has_none_to_fold() -> None:
    with pytest.raises(InvalidInput, match="no vectors by token"):
        parse_encode_options({"muvera": {}}, FAKE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, {}),
        (True, {}),
        ({"tokens": 16, "overlap": 8}, {"tokens": 16, "overlap": 8}),
        ({"overlap": 3}, {"overlap": 3}),
    ],
)
def test_texts_can_be_asked_for_in_chunks(value: Any, expected: Any) -> None:
    assert parse_encode_options({"chunk": value}, FAKE).chunk == expected


@pytest.mark.parametrize(
    "value",
    [
        False,
        256,
        [],
        {"tokens": 15},
        {"tokens": 16.0},
        {"tokens": True},
        {"overlap": -1},
        {"tokens": 20, "overlap": 11},
        {"words": 3},
        {"tokens": 10_000_000},
    ],
)
def test_chunks_that_cannot_be_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_encode_options({"chunk": value}, replace(FAKE, max_tokens=512))
    assert caught.value.param == "options.chunk"


def test_many_vectors_can_be_asked_for_as_a_sparse_one() -> None:
    options = parse_encode_options({"smve": {"k": 8}, "muvera": {}}, MULTI)
    assert (options.output_types, options.smve) == (("dense", "sparse"), {"k": 8})


@pytest.mark.parametrize("value", [3, {"width": 10}, {"k": 0}, {"dims": 300}])
def test_a_sparse_shape_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_encode_options({"smve": value}, MULTI)
    assert caught.value.param == "options.smve"
