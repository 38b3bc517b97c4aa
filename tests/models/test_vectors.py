"""What happens to a vector after the forward."""

from typing import Any

import numpy as np
import pytest

from protocol.errors import NonFiniteOutput
from tests.models import tiny
from tests.models.conftest import Encoder
from workers.layers import vectors


def finish(numbers: list[float], **options: Any) -> dict[str, Any]:
    wanted = {"precision": "float32", "dimensions": None, "normalize": False, "dtype": "float32", **options}
    return vectors.finish("org/model", np.array(numbers, np.float32), **wanted)


def test_a_shortened_vector_is_of_unit_length() -> None:
    """S010's worked example."""
    dense = finish([0.6, 0.0, 0.8], dimensions=2, normalize=True)

    assert dense["values"].tolist() == [1.0, 0.0]
    assert dense["dims"] == 2


def test_shortening_a_real_vector_is_the_normalised_slice(minilm: Encoder) -> None:
    [full] = minilm.vectors(["river stones"])

    [cut] = minilm.vectors(["river stones"], dimensions=64)

    assert np.linalg.norm(cut) == pytest.approx(1.0, abs=1e-6)
    assert np.abs(cut - full[:64] / np.linalg.norm(full[:64])).max() < 1e-6


def test_normalising_is_the_callers_choice(minilm: Encoder) -> None:
    raw, unit = minilm.vectors(["x"], normalize=False), minilm.vectors(["x"], normalize=True)

    assert np.linalg.norm(raw) > 1.5
    assert np.abs(raw / np.linalg.norm(raw) - unit).max() < 1e-6


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "binary"])
def test_numbers_that_are_not_finite_are_never_answered(number: float, dtype: str) -> None:
    """S003."""
    with pytest.raises(NonFiniteOutput, match=r"'org/model' \(float32\)") as caught:
        finish([1.0, number], dtype=dtype)

    assert caught.value.extra == {"model": "org/model", "dtype": "float32"}


def test_what_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(NonFiniteOutput, match="float16"):
        finish([1.0, 70000.0], dtype="float16")


@pytest.mark.parametrize("numbers", [[0.5, -1.0, 0.25], [0.0, 0.0, 0.0], [3.0, 3.0, 3.0], [-2.0, -2.0, -2.0]])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_scale_and_offset_undo_quantising(numbers: list[float], dtype: str) -> None:
    dense = finish(numbers, dtype=dtype)

    back = dense["values"].astype(np.float32) * dense["scale"] + dense["offset"]

    assert dense["values"].dtype == dtype
    assert np.abs(back - numbers).max() <= max(dense["scale"] / 2, 1e-6) + 1e-6


def test_int8_is_symmetric_and_uint8_spans_its_range() -> None:
    assert finish([1.0, -0.5, 0.0], dtype="int8")["values"].tolist() == [127, -64, 0]
    assert finish([1.0, -1.0, 0.5], dtype="uint8")["values"].tolist() == [255, 0, 191]
    assert finish([2.0, 2.0], dtype="uint8")["values"].tolist() == [128, 128]


def test_binary_packs_bits_and_names_the_width_before() -> None:
    dense = finish([1.0, -1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0], dtype="binary")

    assert dense["values"].tolist() == [0b10011111, 0b10000000]
    assert (dense["dims"], dense["dtype"]) == (9, "binary")


def test_a_result_says_what_was_read(minilm: Encoder) -> None:
    short, long = minilm.results(["hello world", " ".join(tiny.words(300))])

    assert (short["tokens"], short["truncated"]) == (4, False)
    assert (long["tokens"], long["truncated"]) == (256, True)
    assert (short["dense"]["dims"], short["dense"]["dtype"]) == (384, "float32")
