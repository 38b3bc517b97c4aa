"""Models that share a device with a real worker: a backlog of one keeps no call of another waiting until its end."""

from tests.service.harness import Fleet, Gateway, fake_model, wait_until


def test_slow_items_that_came_first_let_another_models_calls_pass(fleet: Fleet, gateway: Gateway) -> None:
    """By age alone all thirty would be answered before the first quick call."""
    slow = fake_model("fake/slow-items", forward_s=0.3, max_items=1)
    quick = fake_model("fake/quick-calls", forward_s=0.001)
    gateway.serve(slow, quick)
    fleet.start()
    gateway.collect([gateway.send(quick), gateway.send(slow), gateway.send(slow)])
    answered: set[str] = set()

    def is_answered(request_id: str) -> bool:
        answered.update(reply.id for reply in gateway.mail())
        return request_id in answered

    backlog = [gateway.send(slow, f"slow {number}") for number in range(30)]
    wait_until(lambda: is_answered(backlog[0]), what="the first slow item")
    for number in range(4):
        call = gateway.send(quick, f"quick {number}")
        wait_until(lambda call=call: is_answered(call), 60.0, "a quick call")  # type: ignore[misc]
    assert len(answered.intersection(backlog)) < 24
