"""What is special about RabbitMQ."""

import json
import subprocess
import time
from urllib.parse import urlsplit

import pytest
from kombu.connection import Connection
from kombu.entity import Queue

from protocol import names
from tests.service.harness import Fleet, Gateway, Services, fake_model, wait_until


def _control(*arguments: str) -> str:
    done = subprocess.run(["rabbitmqctl", "-q", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def _queues(services: Services) -> dict[str, dict[str, int]]:
    vhost = urlsplit(services.broker_url).path[1:]
    columns = ("name", "messages_ready", "messages_unacknowledged")
    rows = json.loads(_control("list_queues", "-p", vhost, "--formatter", "json", *columns))
    return {row["name"]: row for row in rows}


def test_closed_connections_neither_repeat_nor_lose_what_runs(
    rabbitmq_fleet: Fleet, rabbitmq_gateway: Gateway, on_rabbitmq: Services
) -> None:
    model = fake_model("fake/closed", forward_s=2.0)
    rabbitmq_gateway.serve(model)
    worker = rabbitmq_fleet.start()
    ids = [rabbitmq_gateway.send(model) for _ in range(20)]
    wait_until(lambda: rabbitmq_gateway.beat(worker).get("queues"), what="requests held")
    vhost = urlsplit(on_rabbitmq.broker_url).path[1:]
    _control("close_all_connections", "-p", vhost, "a test")
    found = rabbitmq_gateway.collect(ids)
    assert all(reply.error is None for reply in found.values())
    wait_until(lambda: rabbitmq_gateway.beat(worker)["counters"]["items"] >= 20, what="a beat")
    time.sleep(3)
    assert rabbitmq_gateway.items_run(worker) == 20
    wait_until(
        lambda: _queues(on_rabbitmq)[rabbitmq_gateway.queue(model)]["messages_unacknowledged"] == 0,
        what="everything acknowledged",
    )


def test_prefetch_counts_for_each_queue_alone(
    rabbitmq_fleet: Fleet, rabbitmq_gateway: Gateway, on_rabbitmq: Services
) -> None:
    flooded, other = fake_model("fake/flooded", forward_s=1.5), fake_model("fake/other", forward_s=1.5)
    rabbitmq_gateway.serve(flooded, other)
    sent = {model.spec.model: [rabbitmq_gateway.send(model) for _ in range(12)] for model in (flooded, other)}
    worker = rabbitmq_fleet.start(SHOAL_PREFETCH=5)
    held = wait_until(
        lambda: len(queues := rabbitmq_gateway.beat(worker).get("queues", {})) == 2 and queues, what="both queues held"
    )
    assert {queue["items"] for queue in held.values()} == {5}
    rabbitmq_gateway.collect(sent["fake/flooded"] + sent["fake/other"], timeout=60)


def test_a_bulk_queue_is_a_quorum_queue(rabbitmq_fleet: Fleet, rabbitmq_gateway: Gateway) -> None:
    model = fake_model("fake/bulky")
    rabbitmq_gateway.serve(model)
    rabbitmq_fleet.start()
    request_id = rabbitmq_gateway.send(model, lane="bulk")
    assert rabbitmq_gateway.collect([request_id])[request_id].error is None


def test_no_queue_of_celerys_own_appears(
    rabbitmq_fleet: Fleet, rabbitmq_gateway: Gateway, on_rabbitmq: Services
) -> None:
    model = fake_model("fake/tidy")
    rabbitmq_gateway.serve(model)
    rabbitmq_fleet.start()
    rabbitmq_gateway.collect([rabbitmq_gateway.send(model)])
    assert [name for name in _queues(on_rabbitmq) if name.startswith("celery")] == []
    assert names.INTAKE_QUEUE in _queues(on_rabbitmq)


def test_two_workers_of_one_name_both_serve(rabbitmq_fleet: Fleet, rabbitmq_gateway: Gateway) -> None:
    model = fake_model("fake/twin", forward_s=0.5, max_items=1)
    rabbitmq_gateway.serve(model)
    twins = [rabbitmq_fleet.start("twin") for _ in range(2)]
    rabbitmq_gateway.collect([rabbitmq_gateway.send(model) for _ in range(4)])
    assert [twin.process.poll() for twin in twins] == [None, None]


@pytest.fixture(autouse=True)
def needs_control(rabbitmq_url: str) -> None:
    """The virtual host was made with `rabbitmqctl`, so it is there."""


def test_a_queue_that_exists_with_other_arguments_costs_only_its_own_model(
    rabbitmq_fleet: Fleet, rabbitmq_gateway: Gateway, on_rabbitmq: Services
) -> None:
    wrong, right = fake_model("fake/wrong"), fake_model("fake/right")
    with Connection(on_rabbitmq.broker_url) as connection:
        queue = Queue(rabbitmq_gateway.queue(wrong), durable=True, queue_arguments={"x-max-length": 5})
        queue(connection.default_channel).queue_declare()
        rabbitmq_gateway.serve(right)
        worker = rabbitmq_fleet.start()
        rabbitmq_gateway.serve(right, wrong, declare=False)
        rabbitmq_gateway.wake([rabbitmq_gateway.queue(wrong)])
        worker.wait_for_log("queue refused by the broker")
        rabbitmq_gateway.collect([rabbitmq_gateway.send(right) for _ in range(5)])
        assert worker.log.read_text().count("queue refused by the broker") == 1
        queue(connection.default_channel).delete()
