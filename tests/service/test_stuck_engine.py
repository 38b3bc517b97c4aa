"""S067: one forward never comes back; two engines, three models, a real worker."""

import time
from dataclasses import replace
from typing import Any

import pytest

from catalog.snapshot import Model
from tests.service.harness import Fleet, Gateway, fake_model
from workers.flights import STUCK_S

HANG_S = 15.0


def in_bundle(bundle: str, name: str, **load: Any) -> Model:
    model = fake_model(name, **load)
    return replace(model, spec=replace(model.spec, bundle=bundle))


@pytest.mark.timeout(180)
def test_a_stuck_forward_stops_neither_a_resident_nor_a_cold_model(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    wedged, mate = in_bundle("base", "org/wedged"), in_bundle("base", "org/mate")
    resident, cold = in_bundle("documents", "org/resident"), in_bundle("documents", "org/cold", load_s=0.2)
    redis_gateway.serve(wedged, mate, resident, cold)
    worker = redis_fleet.start(SHOAL_HANG_S=HANG_S)
    redis_gateway.collect([redis_gateway.send(model) for model in (wedged, mate, resident)])
    stuck, begun = redis_gateway.send(wedged, "hang", deadline=time.time() + 150), time.monotonic()
    time.sleep(0.5)
    waiting = redis_gateway.send(mate)
    others = redis_gateway.collect([redis_gateway.send(resident), redis_gateway.send(cold)])
    assert time.monotonic() - begun < STUCK_S + 5.0
    assert all(reply.error is None for reply in others.values())
    assert redis_gateway.beat(worker)["counters"]["engine_restarts"] == 0
    found = redis_gateway.collect([stuck, waiting], timeout=2 * HANG_S + 30.0)
    assert found[waiting].error is None
    assert (found[stuck].error or {})["code"] == "WORKER_LOST"
