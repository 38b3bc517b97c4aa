"""What an engine keeps out of the garbage collector's sight, and that models leave all the same."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from workers.engine import memory


class Model:
    """In a cycle, as modules with hooks are."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unsettled() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_settled_is_walked_no_more() -> None:
    memory.settle_libraries()
    assert gc.get_freeze_count() > 1000
    assert len(gc.get_objects()) < gc.get_freeze_count()


def test_a_model_that_came_later_leaves() -> None:
    memory.settle_libraries()
    left = weakref.ref(Model())
    memory.give_back()
    assert left() is None


def test_a_model_that_was_there_before_leaves_when_all_is_looked_at() -> None:
    model = Model()
    left = weakref.ref(model)
    memory.settle_libraries()
    del model
    memory.give_back()
    assert left() is not None
    memory.give_back(all_of_it=True)
    assert left() is None
