"""What RabbitMQ does of itself: it blocks publishers, closes channels, counts deliveries, drops what is silent."""

import json
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from kombu.connection import Connection

from tests.service.faults import rabbitmq
from tests.service.faults.system import System
from tests.service.faults.traffic import Traffic
from tests.service.faults.verdict import Verdict
from tests.service.harness import Fleet, Gateway, Services, fake_model, wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)]
MakeSystem = Callable[..., System]

ALARM_S = 5.0
RETURNED = 25  # more often than a quorum queue of RabbitMQ 4 delivers by default


def test_a_memory_alarm_refuses_and_passes(
    make_system: MakeSystem, rabbitmq_node: rabbitmq.Node, requests: int
) -> None:
    """While the broker takes nothing callers hear so at once; what it has is answered, and after it all is."""
    system = make_system()
    traffic = Traffic(system, requests).start()
    traffic.wait_for(0.3)
    rabbitmq_node.control("set_vm_memory_high_watermark", "absolute", "1")
    try:
        refusal = wait_until(lambda: _refusal(system), ALARM_S, "a refusal")
        time.sleep(ALARM_S)
        again = _refusal(system)
    finally:
        rabbitmq_node.control("set_vm_memory_high_watermark", "0.6")
    assert refusal.json()["error"]["code"] == "QUEUE_UNAVAILABLE"
    assert int(refusal.headers["Retry-After"]) > 0
    assert again is not None, "it goes on refusing"
    assert again.elapsed.total_seconds() < 1.0, "and at once"
    traffic.finish()
    Verdict(traffic).check()


def _refusal(system: System) -> httpx.Response | None:
    url = f"{system.gateways[0].url}/v1/encode/{system.model.spec.model}"
    answer = httpx.post(url, json={"items": ["refused?"]}, timeout=30)
    return answer if answer.status_code == 503 else None


@pytest.fixture
def impatient(rabbitmq_node: rabbitmq.Node) -> Iterator[None]:
    """The broker closes channels that acknowledge nothing for two seconds, and looks every half second."""
    rabbitmq_node.set("consumer_timeout", "2000")
    rabbitmq_node.set("channel_tick_interval", "500")
    yield
    rabbitmq_node.set("consumer_timeout", "1800000")
    rabbitmq_node.set("channel_tick_interval", "60000")


def test_a_batch_longer_than_the_consumer_timeout_is_answered_once(
    impatient: None, fleet: Fleet, stand_in: Gateway
) -> None:
    """Its channel is closed under it, the broker hands the work out again, and the worker lives on."""
    model = fake_model("fault/patient", forward_s=5.0)
    stand_in.serve(model)
    worker = fleet.start()
    ids = [stand_in.send(model, f"text {number}", store=True) for number in range(4)]
    found = stand_in.collect(ids, timeout=60)
    assert [reply.error for reply in found.values()] == [None] * len(ids)
    assert worker.process.poll() is None
    worker.wait_for_log("PreconditionFailed")  # the fault took place
    wait_until(lambda: stand_in.beat(worker).get("queues") == {}, 30, "all acknowledged")
    time.sleep(1.0)
    assert {reply.id for reply in stand_in.mail()} <= set(ids)


@pytest.fixture
def hasty(rabbitmq_node: rabbitmq.Node) -> Iterator[None]:
    """New connections are given up when they are silent for two seconds."""
    rabbitmq_node.set("heartbeat", "1")
    yield
    rabbitmq_node.set("heartbeat", "60")


def test_a_batch_longer_than_many_heartbeats_keeps_its_connection(hasty: None, fleet: Fleet, stand_in: Gateway) -> None:
    """Forwards run in a process of their own, so the one that speaks with the broker is never busy."""
    model = fake_model("fault/slow", forward_s=8.0)
    stand_in.serve(model)
    worker = fleet.start()
    ids = [stand_in.send(model) for _ in range(4)]
    found = stand_in.collect(ids, timeout=60)
    assert [reply.error for reply in found.values()] == [None] * len(ids)
    assert "Connection to broker lost" not in worker.log.read_text()
    wait_until(lambda: stand_in.beat(worker).get("counters", {}).get("items") == len(ids), what="a beat")


def test_a_request_returned_many_times_is_still_answered(
    fleet: Fleet, stand_in: Gateway, services: Services, rabbitmq_node: rabbitmq.Node
) -> None:
    """Workers that die take innocents back to the queue with them; only what started and never ended is given up."""
    model = fake_model("fault/returned")
    stand_in.serve(model)
    request_id = stand_in.send(model, lane="bulk", store=True)
    queue = stand_in.queue(model, "bulk")
    with Connection(services.broker_url) as connection:
        channel = connection.default_channel
        for _ in range(RETURNED):
            message = wait_until(lambda: channel.basic_get(queue), what="the request")
            channel.basic_reject(message.delivery_tag, requeue=True)
    assert _limit(rabbitmq_node, queue) > RETURNED  # RabbitMQ 3 has none of its own
    fleet.start()
    assert stand_in.collect([request_id])[request_id].error is None


def _limit(node: rabbitmq.Node, queue: str) -> int:
    rows = json.loads(node.control("list_queues", "-p", "shoal", "--formatter", "json", "name", "arguments"))
    arguments = next(row["arguments"] for row in rows if row["name"] == queue)
    found = dict(arguments) if isinstance(arguments, dict) else {name: value for name, _, value in arguments}
    return int(found.get("x-delivery-limit", 0))
