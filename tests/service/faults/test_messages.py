"""Messages that come twice, come late, or are told apart by nothing but their worker's name."""

import random
import time
import uuid
from collections.abc import Callable

import httpx
import msgpack
import numpy as np
import pytest

from protocol.messages import EMBED, celery_headers
from tests.service.faults.system import System
from tests.service.harness import Fleet, Gateway, Services, fake_model, plain_client, wait_until
from workers.families.fake import vector

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
MakeSystem = Callable[..., System]

WAIT_S = 240.0


def test_duplicates_change_no_result(fleet: Fleet, stand_in: Gateway, requests: int) -> None:
    """Each request is in the queue once, twice or thrice, in any order, before two workers; half are stored."""
    model = fake_model("fault/twice", forward_s=0.005, max_items=32)
    stand_in.serve(model)
    rolls = random.Random(7)
    texts = {str(uuid.uuid4()): f"text {number}" for number in range(requests)}
    copies = [request_id for request_id in texts for _ in range(rolls.randint(1, 3))]
    rolls.shuffle(copies)
    stored = set(list(texts)[::2])
    for _ in range(2):
        fleet.start()
    for request_id in copies:
        text, store = texts[request_id], request_id in stored
        request = stand_in.request(model, id=request_id, store=store, deadline=time.time() + WAIT_S)
        headers = celery_headers(request, "test")
        stand_in.publish(stand_in.queue(model), headers, _body(request.model, text), wake=False)
    stand_in.wake([stand_in.queue(model)])
    found = stand_in.collect(texts, timeout=WAIT_S)
    first = {request_id: _stored(stand_in, request_id) for request_id in stored}
    wait_until(lambda: _is_idle(stand_in, fleet), 60, "all copies done")
    late = [reply for reply in stand_in.mail() if reply.id in texts]
    for reply in [*found.values(), *late]:
        assert reply.error is None and reply.results is not None
        assert np.allclose(reply.results[0]["dense"]["values"], vector(texts[reply.id], 8), atol=1e-6)
    assert {request_id: _stored(stand_in, request_id) for request_id in stored} == first


def _stored(stand_in: Gateway, request_id: str) -> bytes:
    found = stand_in.redis.get(f"celery-task-meta-{request_id}")
    assert isinstance(found, bytes), "no result is stored"
    return found


def _is_idle(stand_in: Gateway, fleet: Fleet) -> bool:
    """No worker holds anything, twice in a row of their beats."""
    beats = [stand_in.beat(worker) for worker in fleet.workers]
    time.sleep(1.1)
    later = [stand_in.beat(worker) for worker in fleet.workers]
    items = [[beat.get("counters", {}).get("items") for beat in several] for several in (beats, later)]
    return items[0] == items[1] and all(beat.get("queues") == {} for beat in later)


def test_a_delayed_message_on_a_models_queue_is_refused(fleet: Fleet, stand_in: Gateway) -> None:
    """Held until its time it would fill the prefetch for nothing; the queue goes on."""
    model = fake_model("fault/later")
    stand_in.serve(model)
    fleet.start()
    request = stand_in.request(model)
    headers = celery_headers(request, "test") | {"eta": "2099-01-01T00:00:00+00:00"}
    stand_in.publish(stand_in.queue(model), headers, _body(request.model, "later"))
    error = stand_in.collect([request.id])[request.id].error
    assert error is not None
    assert (error["code"], error["param"]) == ("INVALID_INPUT", "eta")
    assert stand_in.collect([stand_in.send(model)]).popitem()[1].error is None


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_workers_of_one_name_both_serve_and_both_are_seen(fleet: Fleet, stand_in: Gateway, services: Services) -> None:
    """Two containers with one host name; a control command finds each."""
    model = fake_model("fault/twin", forward_s=0.2, max_items=1)
    stand_in.serve(model)
    twins = [fleet.start("twin") for _ in range(2)]
    stand_in.collect([stand_in.send(model) for _ in range(4)])
    client = plain_client(services)
    nodes = {name for answer in client.control.ping(timeout=5) for name in answer}
    client.close()
    assert len({node for node in nodes if node.startswith("twin.")}) == len(twins)
    assert [twin.process.poll() for twin in twins] == [None, None]


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_a_busy_worker_holds_still_counts_as_waiting(make_system: MakeSystem) -> None:
    """Autoscalers that look at the broker's list alone would see nothing: all of it is with the worker."""
    system = make_system(forward_s=4.0, max_items=1)
    model, count = system.model.spec.model, 6
    with httpx.Client(base_url=system.gateways[0].url, timeout=30) as client:
        for number in range(count):
            body = {"primitive": "encode", "model": model, "items": [{"text": f"text {number}"}]}
            assert client.post("/v1/tasks", json=body).status_code == 202
        series = f'shoal_queue_requests{{lane="interactive",model="{model}"}} '
        wait_until(lambda: _gauge(client, series) >= count - 2, 20, "the gauge to show what waits or runs")


def _gauge(client: httpx.Client, series: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.removeprefix(series)) for line in lines if line.startswith(series)), 0.0)


def _body(model: str, text: str) -> bytes:
    return bytes(msgpack.packb([[], {"model": model, "items": [{"text": text}], "options": {}}, EMBED]))
