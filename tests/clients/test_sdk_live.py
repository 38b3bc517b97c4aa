"""The published SDK itself, unmodified, against the running product."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.system import Serving
from tests.clients import sdk

Outcomes = Mapping[str, dict[str, Any]]

# Call -> the SDK's exception, the code it read, and a word of its message
ERRORS = {
    "bad_dtype": ("RequestError", "INVALID_INPUT", "float16"),
    "bad_option": ("RequestError", "INVALID_INPUT", "did you mean normalize"),
    "image": ("RequestError", "INVALID_INPUT", "images"),
    "sparse_of_dense": ("RequestError", "INVALID_INPUT", "sparse"),
    "instruction": ("RequestError", "INVALID_INPUT", "takes no instruction"),
    "too_long": ("InputTooLongError", "INPUT_TOO_LONG", "256"),
    "no_items": ("RequestError", "INVALID_INPUT", "items"),
    "unknown_model": ("RequestError", "MODEL_NOT_FOUND", "did you mean shoal-tests/minilm"),
    "get_model_unknown": ("RequestError", "MODEL_NOT_FOUND", "did you mean shoal-tests/minilm"),
    "broken_forward": ("ServerError", "INFERENCE_ERROR", ""),
    "not_finite": ("ServerError", "NON_FINITE_OUTPUT", "finite"),
    "cannot_load": ("ModelLoadFailedError", "MODEL_LOAD_FAILED", "could not be loaded"),
    "score_images": ("RequestError", "INVALID_INPUT", "images"),
    "score_of_encoder": ("RequestError", "INVALID_INPUT", "does not score"),
    "extract_bad_option": ("RequestError", "INVALID_INPUT", "from 0 to 1"),
    "extract_unread_option": ("RequestError", "INVALID_INPUT", "does not read 'threshold'"),
}


@pytest.fixture(scope="module")
def outcomes(shoal: Serving, sdk_python: Path) -> Outcomes:
    """Every call of `sdk_calls.py`, made in one go: the interpreter and the client take seconds to start."""
    return {outcome["call"]: outcome for outcome in sdk.call(sdk_python, shoal.url)}


def vector(outcomes: Outcomes, call: str) -> np.ndarray:
    dense = outcomes[call]["result"]["dense"]
    return np.array(dense["values"], dense["dtype"])


def test_a_single_item_gives_a_unit_vector(outcomes: Outcomes) -> None:
    dense = vector(outcomes, "single")

    assert dense.dtype == np.float32
    assert np.linalg.norm(dense) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("call", ["list", "async_list"])
def test_a_list_gives_results_in_order(outcomes: Outcomes, call: str) -> None:
    results = outcomes[call]["result"]

    assert [result.get("id") for result in results] == ["a", None, "c"][: len(results)]
    assert results[0]["dense"] != results[1]["dense"]


@pytest.mark.parametrize(
    ("call", "dtype", "width"),
    [("float16", "float16", 384), ("int8", "int8", 384), ("uint8", "uint8", 384), ("binary", "uint8", 48)],
)
def test_output_dtypes_arrive_as_arrays(outcomes: Outcomes, call: str, dtype: str, width: int) -> None:
    assert (vector(outcomes, call).dtype, vector(outcomes, call).shape) == (np.dtype(dtype), (width,))


@pytest.mark.parametrize("call", ["profile_option", "profile_id"])
def test_a_profile_is_chosen_by_option_or_by_name(outcomes: Outcomes, call: str) -> None:
    assert vector(outcomes, call).dtype == np.float16


@pytest.mark.parametrize("call", ["query", "document", "output_types", "options", "metadata", "multivector_item"])
def test_what_changes_nothing_for_this_model_changes_nothing(outcomes: Outcomes, call: str) -> None:
    exact, half = vector(outcomes, call), vector(outcomes, "float16").astype(np.float32)

    assert exact @ half == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("call", "wanted"), ERRORS.items())
def test_errors_are_the_sdks_own(outcomes: Outcomes, call: str, wanted: tuple[str, str, str]) -> None:
    error = outcomes[call]["error"]

    assert (error["type"], error["code"]) == wanted[:2]
    assert wanted[2] in error["message"]


def test_a_cold_model_is_waited_for_by_the_sdks_own_retries(outcomes: Outcomes) -> None:
    assert outcomes["cold"]["result"]["dense"]["shape"] == [8]
    assert outcomes["cold"]["retries"] >= 1


def test_scores_are_ranked_with_the_items_ids(outcomes: Outcomes) -> None:
    result = outcomes["score"]["result"]

    assert (result["model"], result["query_id"]) == ("shoal-tests/ranker", "q")
    ranked = [(entry["item_id"], entry["rank"], entry["score"]) for entry in result["scores"]]
    assert ranked == [("item-1", 0, 1.0), ("near", 1, 0.5), ("far", 2, 0.0)]


def test_entities_lead_into_the_text(outcomes: Outcomes) -> None:
    first, second = outcomes["extract"]["result"]

    assert first["id"] == "a"
    spans = [(found["label"], found["start"], found["end"]) for found in first["entities"]]
    assert spans == [("boat", 14, 18), ("three", 19, 24)]
    assert (second["entities"], second["objects"]) == ([], [])


def test_media_arrive_whole(outcomes: Outcomes) -> None:
    assert outcomes["extract_media"]["result"]["data"] == {"bytes": {"images": 70}}
    assert outcomes["extract_document"]["result"]["data"] == {"bytes": {"document": 8}}


def test_an_item_that_failed_alone_says_so(outcomes: Outcomes) -> None:
    bad, good = outcomes["extract_partly"]["result"]

    assert bad["error"]["code"] == "INFERENCE_ERROR"
    assert len(good["entities"]) == 1


def test_models_are_listed_and_described(outcomes: Outcomes) -> None:
    assert "shoal-tests/minilm:half" in outcomes["list_models"]["result"]
    assert outcomes["get_model"]["result"]["dims"]["dense"] == 384


def test_capacity_counts_the_worker(outcomes: Outcomes) -> None:
    assert outcomes["capacity"]["result"]["worker_count"] == 1


def test_every_call_has_a_test(outcomes: Outcomes) -> None:
    """Calls that no other test names must at least succeed."""
    surprising = {call for call, outcome in outcomes.items() if "error" in outcome} - ERRORS.keys()

    assert surprising == set()
