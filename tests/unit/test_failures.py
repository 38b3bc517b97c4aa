"""What an engine makes of the errors its libraries raise."""

import pytest

from workers.batching import Pace
from workers.engine.failures import kind_of


class AcceleratorError(RuntimeError):
    """By the name of torch's own."""


KINDS: list[tuple[BaseException, str]] = [
    (MemoryError(), "memory"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "memory"),
    (AcceleratorError("CUDA error: out of memory"), "memory"),
    (RuntimeError("CUDA error: device-side assert triggered"), "lost"),
    (AcceleratorError("an illegal memory access was encountered"), "lost"),
    (RuntimeError("shapes do not match"), "error"),
]


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda value: str(value)[:30])
def test_the_kind_of_a_failure(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_one_item_that_never_fits_leaves_the_budget_of_the_others() -> None:
    pace = Pace()
    pace.observe(64, 0.01)
    for failed, ran in ((64, 32), (32, 16), (16, 8), (8, 4), (4, 2), (2, 1)):
        pace.lower(failed)
        pace.observe(ran, 0.01)
    pace.lower(1)
    assert pace.budget(64, 10.0) == 64


def test_memory_that_shrank_lowers_the_budget_with_the_second_failure() -> None:
    pace = Pace()
    pace.observe(64, 0.01)
    pace.lower(60)
    pace.observe(30, 0.01)
    pace.lower(60)
    assert pace.budget(64, 10.0) == 30
