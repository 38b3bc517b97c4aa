"""Prefetch by cost on RabbitMQ: a channel that notes what it is asked, and no broker."""

from dataclasses import dataclass, field
from typing import Any

import amqp.exceptions
import pytest
from kombu.entity import Queue

from workers.claiming import Backlog
from workers.rabbit_broker import FIRST_PREFETCH, STEADY_S, Appetite, RabbitBroker


@dataclass
class Declared:
    message_count: int


@dataclass
class NotingChannel:
    """Also stands for the consumer and the connection: all that a RabbitBroker asks of kombu."""

    depths: dict[str, int] = field(default_factory=dict)
    said: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def channel(self) -> "NotingChannel":
        return self

    def basic_qos(self, size: int, count: int, is_global: bool) -> None:
        assert not is_global, "one full queue would starve all others"
        self.said.append(("prefetch", count))

    def add_queue(self, queue: Queue) -> None:
        self.said.append(("consume", queue.name))

    def consume(self) -> None:
        """Told by add_queue."""

    def cancel_by_queue(self, name: str) -> None:
        self.said.append(("cancel", name))

    def queue_declare(self, queue: str, passive: bool) -> Declared:
        assert passive, "a look makes no queue"
        if queue not in self.depths:
            raise amqp.exceptions.NotFound("no queue")
        return Declared(self.depths[queue])


@dataclass
class Connection:
    channels: list[NotingChannel]

    def channel(self) -> NotingChannel:
        return self.channels.pop(0)


@dataclass
class World:
    appetite: Appetite
    channel: NotingChannel = field(default_factory=NotingChannel)
    overfull: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = RabbitBroker(self.channel, Connection([]), 256, lambda name: self.appetite, self.overfull.append)
        self.broker.subscribe(Queue("q"))
        self.subscription = self.broker._subscriptions["q"]
        self.channel.said.clear()

    def adjust(self, **appetite: Any) -> list[tuple[str, Any]]:
        """What is said to RabbitMQ when the appetite has become this."""
        self.channel.said.clear()
        self.appetite = Appetite(**{"limit": 100, "held": 0, "mean": 10.0, **appetite})
        self.broker._adjust(self.subscription, self.subscription.changed + STEADY_S + 0.01)
        return self.channel.said


@pytest.mark.parametrize(
    ("limit", "mean", "prefetch"),
    [(100, 10.0, 10), (100, 9.0, 12), (100, 5000.0, 1), (10_000, 1.0, 256), (100, None, FIRST_PREFETCH), (0, 3.0, 1)],
)
def test_the_prefetch_is_as_many_messages_as_cost_what_may_be_held(
    limit: int, mean: float | None, prefetch: int
) -> None:
    assert Appetite(limit, 0, mean).prefetch(256) == prefetch


def test_a_small_most_bounds_the_first_prefetch_too() -> None:
    assert Appetite(100, 0, None).prefetch(2) == 2


def test_a_prefetch_follows_what_messages_cost() -> None:
    world = World(Appetite(100, 0, 10.0))
    assert world.adjust(mean=50.0) == [("cancel", "q"), ("prefetch", 2), ("consume", "q")]


def test_a_prefetch_that_is_about_right_stays() -> None:
    assert World(Appetite(100, 0, 10.0)).adjust(mean=8.0) == []


def test_a_prefetch_is_not_changed_again_at_once() -> None:
    world = World(Appetite(100, 0, 10.0))
    world.appetite = Appetite(100, 0, 50.0)
    world.broker._adjust(world.subscription, world.subscription.changed + STEADY_S / 2)
    assert world.channel.said == []


def test_far_too_much_held_pauses_a_queue_until_there_is_room() -> None:
    world = World(Appetite(100, 0, 10.0))
    assert world.adjust(held=1000) == [("cancel", "q")]
    assert world.overfull == ["q"]
    assert world.adjust(held=150) == []
    assert world.adjust(held=90) == [("prefetch", 10), ("consume", "q")]


def test_a_paused_queue_is_subscribed_and_behind() -> None:
    world = World(Appetite(100, 0, 10.0))
    world.adjust(held=1000)
    assert world.broker.subscribed("q")
    assert world.broker.behind() == ["q"]


def test_a_queue_that_was_left_is_not_taken_up_again() -> None:
    world = World(Appetite(100, 0, 10.0))
    world.broker.unsubscribe("q")
    world.broker.tick()
    assert world.channel.said == [("cancel", "q")]
    assert not world.broker.subscribed("q")


def test_a_look_at_a_queue_that_is_not_there_costs_only_its_own_channel() -> None:
    channels = [NotingChannel(), NotingChannel(depths={"there": 7})]
    world = World(Appetite(100, 0, 10.0))
    world.broker._connection = Connection(channels)
    assert world.broker.backlogs(["gone", "there"]) == {"gone": Backlog(0), "there": Backlog(7)}
    assert channels == []
