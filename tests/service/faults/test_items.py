"""Items that break forwards, each under load: their own request alone fails, with the error of its kind."""

import time
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from tests.service.faults.system import System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict
from tests.service.harness import Fleet, Gateway, fake_model

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
PATIENCE_S = 840.0


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_many_crashes_take_no_neighbour_along(fleet: Fleet, stand_in: Gateway, requests: int) -> None:
    """25 requests that end their engine beside 64 good ones, taken together; fewer in a short run."""
    crashes, good = (25, 64) if requests >= 10_000 else (4, 16)
    model = fake_model("fault/crashing", max_items=8, forward_s=0.01)
    stand_in.serve(model)
    every = 1 + good // crashes
    words = ["segfault" if number % every == 0 else "good" for number in range(crashes * every)] + ["good"] * good
    sent = {}
    for number, word in enumerate(words[: crashes + good]):
        sent[stand_in.send(model, f"{word} {number}", lane="bulk", deadline=time.time() + PATIENCE_S)] = word
    fleet.start()
    found = stand_in.collect(sent, timeout=PATIENCE_S)
    codes = Counter((sent[request_id], (reply.error or {}).get("code")) for request_id, reply in found.items())
    assert codes == {("segfault", "WORKER_LOST"): crashes, ("good", None): good}
