"""Items that break forwards, each under load: their own request alone fails, with the error of its kind."""

from collections.abc import Callable, Mapping

import pytest

from tests.service.faults.system import System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict

pytestmark = pytest.mark.heavy
MakeSystem = Callable[..., System]

CODES: Mapping[str, str] = {
    "boom": "INFERENCE_ERROR",
    "oom": "RESOURCE_EXHAUSTED",
    "torchoom": "RESOURCE_EXHAUSTED",
    "segfault": "WORKER_LOST",
    "deviceassert": "WORKER_LOST",
}
HANG_S = 2.0


def _run(system: System, count: int, wrong: Mapping[int, str]) -> None:
    """`wrong` says which request holds which bad word."""
    texts = {index: f"{word} {index}" for index, word in wrong.items()}
    traffic = Traffic(system, count, texts).start()
    traffic.finish()
    own = {index: CODES.get(word, "WORKER_LOST") for index, word in wrong.items()}
    Verdict(traffic, own).check()


def test_items_that_break_forwards_fail_alone(make_system: MakeSystem, requests: int) -> None:
    """S077, S079: a batch with one of them is retried by halves; the rest of it is answered as if nothing were."""
    wrong = {requests // 12 * (place + 1) + place % 2: word for place, word in enumerate([*CODES, *CODES])}
    _run(make_system(), requests, wrong)


def test_an_item_that_hangs_fails_alone(make_system: MakeSystem, requests: int) -> None:
    """The watchdog ends the engine as often as it takes to find the item."""
    system = make_system(worker_settings={"SHOAL_HANG_S": HANG_S}, max_items=8)
    _run(system, requests, {requests // 3: "hang", requests // 2 + 1: "hang"})
