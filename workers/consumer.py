"""Celery's consumer with our own steps: per-queue subscriptions, work that outlives a connection, no texts in logs.

Left out are Mingle and Gossip (chatter between workers) and DelayedDelivery (28 queues in every virtual host).
"""

import logging
import math
import time
from collections.abc import Iterable
from typing import Any

from celery import bootsteps
from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.consumer.control import Control as CeleryControl
from celery.worker.consumer.events import Events
from kombu.common import QoS, ignore_errors
from kombu.entity import Queue

from protocol import names
from protocol.errors import InvalidInput
from workers.brokers import FALLBACK_S, Broker, RedisBroker
from workers.claims import SETTLE_S
from workers.desk import UnknownTask
from workers.heartbeat import end_process
from workers.rabbit_broker import Appetite, RabbitBroker

log = logging.getLogger("shoal.consumer")

INTAKE_CREDIT = 64  # tasks of plain clients taken at once; each goes on to its model's queue at once
BATCHES_HELD = 2  # one at the engine, one ready
LEAST_COST = 1.0  # of an item, while nobody knows better
SURVEY_S = 10.0  # between looks into queues that nobody woke us for


class Tasks(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Consumes from the queues that are wanted now. Started at every connection, stopped when it is lost or left."""

    requires = (Events,)

    def __init__(self, consumer: "Consumer", **kwargs: Any) -> None:
        consumer.task_consumer = consumer.qos = None
        self._timers: list[Any] = []
        super().__init__(consumer, **kwargs)

    def start(self, consumer: "Consumer") -> None:
        consumer.update_strategies()
        consumer.qos_global = False
        consumer.qos = QoS(lambda prefetch_count: None, 0)  # Celery's loop looks at it; credit is counted elsewhere
        consumer.task_consumer = consumer.app.amqp.TaskConsumer(
            consumer.connection, on_decode_error=consumer.on_decode_error
        )
        consumer.task_consumer.queues = []  # Celery declared its default queue; subscribing is our own business
        # Celery sets it later too, but a broker may deliver while we subscribe.
        consumer.task_consumer.on_message = consumer.create_task_handler()
        consumer.open()
        self._timers = [
            consumer.timer.call_repeatedly(SETTLE_S, consumer.consider),
            consumer.timer.call_repeatedly(FALLBACK_S, consumer.look),
            consumer.timer.call_repeatedly(1.0, consumer.tidy),
            consumer.timer.call_repeatedly(SURVEY_S, consumer.survey),
        ]

    def stop(self, consumer: "Consumer") -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        consumer.leave()
        if consumer.task_consumer:
            ignore_errors(consumer, consumer.task_consumer.cancel)

    def shutdown(self, consumer: "Consumer") -> None:
        if consumer.task_consumer:
            self.stop(consumer)
            ignore_errors(consumer, consumer.task_consumer.close)
            consumer.task_consumer = None

    def info(self, consumer: "Consumer") -> dict[str, Any]:
        return {"held": consumer.runtime.custody.queues()}


class Control(CeleryControl):  # type: ignore[misc]
    """Remote control as ever, after our Tasks instead of Celery's."""

    requires = (Tasks,)


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """One per worker; everything here runs on the Hub's thread."""

    class Blueprint(CeleryConsumer.Blueprint):  # type: ignore[misc]
        default_steps = (
            "celery.worker.consumer.connection:Connection",
            "celery.worker.consumer.events:Events",
            "celery.worker.consumer.heart:Heart",
            "workers.consumer:Tasks",
            "workers.consumer:Control",
            "celery.worker.consumer.consumer:Evloop",
        )

    def __init__(self, *args: Any, pool: Any, **kwargs: Any) -> None:
        self.runtime = pool.runtime
        self.runtime.consumer = self
        super().__init__(*args, pool=pool, **kwargs)

    # -- connections -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """A connection is there: subscribe, and go on with what other threads have handed over meanwhile."""
        runtime = self.runtime
        runtime.custody.broker = self._broker()
        runtime.custody.eventer = self.event_dispatcher
        self._subscribe_to_intake()
        self._serve(runtime.subscriptions.wanted())
        if self.hub is not None:
            self.hub.on_tick.add(self.tick)
        runtime.hub_ticked = time.monotonic()
        runtime.is_consuming = True
        runtime.bridge.attach(self.call_soon, self.connection_errors + self.channel_errors)
        self.call_soon(self.look)

    def leave(self) -> None:
        self.runtime.is_consuming = False
        if self.hub is not None:
            self.hub.on_tick.discard(self.tick)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Celery would end the connection of its events politely, and a broker that is gone never answers that."""
        if self.event_dispatcher and self.event_dispatcher.connection:
            self.event_dispatcher.connection.collect(socket_timeout=0.0)
        super().on_connection_error_after_connected(exc)

    def on_close(self) -> None:
        """Celery would forget what is reserved here; we still hold it and will answer it."""

    def _broker(self) -> Broker:
        if self.connection.transport.driver_type == "redis":
            return RedisBroker(self.task_consumer, self._credit, self.runtime.holdings, self.call_soon)
        return RabbitBroker(self.task_consumer, self.connection, self.runtime.prefetch, self._appetite, self._shed)

    # -- queues ------------------------------------------------------------------------------------------------

    def wake(self, queues: Iterable[str]) -> None:
        """Somebody published to these."""
        if not self.runtime.is_consuming:
            return
        self._serve(self.runtime.subscriptions.ask(queues, self.runtime.catalog(), time.monotonic()))

    def _serve(self, queues: list[str]) -> None:
        """Take from those of models that this worker has; others are left for a while to workers that have them."""
        claiming, broker, now = self.runtime.claiming, self.runtime.custody.broker, time.monotonic()
        taken = [queue for queue in queues if claiming.takes(queue, now)]
        for queue in taken:
            self._subscribe(queue)
        claiming.notice(set(queues).difference(taken), broker.look_every_s, now)
        broker.wake(taken)

    def look(self) -> None:
        """Plain clients wake nobody, nor does who puts a dead worker's requests back."""
        broker = self.runtime.custody.broker
        broker.wake(None)
        if broker.is_cheap_to_ask or self.runtime.claiming.somebody_left():
            self._notice_all()

    def _notice_all(self) -> None:
        """Whatever waits in queues that are left to others."""
        claiming, now = self.runtime.claiming, time.monotonic()
        left = [queue for queue in self.runtime.subscriptions.wanted() if not claiming.takes(queue, now)]
        claiming.notice(left, self.runtime.custody.broker.look_every_s, now)

    def consider(self) -> None:
        """Follow what is on the device, and claim what waits too long for others."""
        runtime, now = self.runtime, time.monotonic()
        claiming, broker = runtime.claiming, runtime.custody.broker
        for queue in runtime.subscriptions.wanted():
            if claiming.takes(queue, now) != broker.subscribed(queue):
                self._follow(queue)
        if claiming.is_alone:
            return
        claiming.notice(broker.behind(), broker.look_every_s, now)
        due = claiming.due(broker.looks_at_once, now)
        if due:
            claiming.see(broker.backlogs(due), broker.look_every_s, now)
        claimed = claiming.claim(now)
        if claimed is not None:
            log.info("queue claimed", extra={"queue": claimed})
            self._serve([claimed])

    def _follow(self, queue: str) -> None:
        """Its model came or went, or other workers did."""
        broker = self.runtime.custody.broker
        if broker.subscribed(queue):
            broker.unsubscribe(queue)
        self._serve([queue])

    def tick(self) -> None:
        """At every turn of the Hub."""
        self.runtime.hub_ticked = time.monotonic()
        self.runtime.bridge.run()
        self.runtime.custody.broker.tick()

    def survey(self) -> None:
        """A wake-up may have been lost, so look into all queues where that is cheap."""
        self.wake(self.runtime.custody.broker.find_waiting(self.runtime.subscriptions.all()))
        self._notice_all()

    def tidy(self) -> None:
        """Once a second: try again what was unknown, end what is quiet, drop what Celery's own command revoked."""
        runtime = self.runtime
        if not runtime.heartbeat.alive:  # it watches all the others, so somebody must watch it
            end_process("its thread died: heartbeat")
        self._serve(runtime.subscriptions.ask_again(runtime.catalog(), time.monotonic()))
        for queue in runtime.subscriptions.quiet(time.monotonic()):
            if runtime.custody.is_idle(queue):
                runtime.subscriptions.end(queue)
                runtime.claiming.forget(queue)
                runtime.custody.broker.unsubscribe(queue)
                log.info("queue left", extra={"queue": queue})
        for request_id in runtime.custody.ids() if state.revoked else ():
            if request_id in state.revoked:
                runtime.dispatcher.cancel(request_id)

    def _subscribe(self, name: str) -> None:
        if not self.runtime.custody.broker.subscribed(name):
            arguments = names.queue_arguments(self.runtime.subscriptions.lane(name))
            try:
                self.runtime.custody.broker.subscribe(
                    Queue(name, routing_key=name, durable=True, queue_arguments=arguments)
                )
            except self.channel_errors:
                log.error("queue refused by the broker", extra={"queue": name})
                self.runtime.subscriptions.break_off(name, time.monotonic())
                self.runtime.claiming.forget(name)
                raise  # the channel is gone with it: reconnect
            log.info("queue joined", extra={"queue": name})

    def _subscribe_to_intake(self) -> None:
        """Declared as any Celery client declares it."""
        self.runtime.custody.broker.subscribe(self.app.amqp.queues[names.INTAKE_QUEUE])

    def _credit(self, queue: str) -> tuple[int, bool]:
        appetite = self._appetite(queue)
        return appetite.limit - appetite.held, self.runtime.custody.is_idle(queue)

    def _appetite(self, queue: str) -> Appetite:
        runtime = self.runtime
        held = runtime.custody.cost(queue)
        if queue == names.INTAKE_QUEUE:
            return Appetite(INTAKE_CREDIT, held, mean=1.0)
        model = runtime.subscriptions.model(queue)
        known = runtime.neighbours.news().model(model)
        mean = runtime.custody.mean_cost(queue) or runtime.mean_cost(model) or known.cost
        item_cost = runtime.custody.item_cost(queue) or mean or LEAST_COST
        return Appetite(BATCHES_HELD * self._batch_cost(model, item_cost), held, mean)

    def _shed(self, queue: str) -> None:
        """Something far larger than usual is held: what waits behind it may run elsewhere."""
        subscriptions = self.runtime.subscriptions
        if not self.runtime.claiming.is_alone and queue != names.INTAKE_QUEUE:
            limit = self._appetite(queue).limit
            self.runtime.dispatcher.shed(subscriptions.model(queue), subscriptions.lane(queue), limit)
            log.info("queue paused", extra={"queue": queue})

    def _batch_cost(self, name: str, item_cost: float) -> int:
        """Of a full batch; before the dispatcher has met the model, by what the catalog says."""
        learned: int = self.runtime.dispatcher.budget(name)
        model = self.runtime.catalog().models.get(name)
        if model is None:
            return learned
        batch: int = min(learned, model.spec.budget or learned, math.ceil(model.spec.max_items * item_cost))
        return batch

    # -- messages that are no tasks of ours --------------------------------------------------------------------

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        name = str(message.headers.get("task"))[:100]
        self._refuse(message, name, InvalidInput(f"there is no task {name!r}", param="task"))

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._refuse(message, "", InvalidInput("the message is not a task"))

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        self._refuse(message, "", InvalidInput("the message is not a valid task"))

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        self._refuse(message, "", InvalidInput("the message's body cannot be read"))

    def _refuse(self, message: Any, task_name: str, error: InvalidInput) -> None:
        """Celery's own handlers would log the body."""
        self.runtime.desk.refuse(message, UnknownTask(task_name), error)
