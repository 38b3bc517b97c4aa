"""Celery asks a task's strategy what to do with a message; ours hands it to the desk, where no task body ever runs."""

from collections.abc import Callable
from typing import Any

from celery import shared_task
from celery.app.task import Task

from protocol.errors import InvalidInput
from protocol.messages import TASK_PREFIX
from protocol.spec import PRIMITIVES


def deliver(task: Any, app: Any, consumer: Any) -> Callable[..., None]:
    """The strategy factory; Celery calls it anew at every connection."""
    desk = consumer.pool.runtime.desk

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> None:
        if body is not None:  # Celery decodes protocol 1 by itself, to find the task's name
            message.headers = {"id": body.get("id"), "task": task.name}
            desk.refuse(message, task, InvalidInput("task protocol 1 is not spoken here; send protocol 2"))
        else:
            desk.receive(message, task)

    return on_message


class DeviceTask(Task):  # type: ignore[misc]  # celery has no types
    """A public task: its requests are batched with others and run on a device, so it has no body of its own."""

    abstract = True
    Strategy = f"{__name__}:deliver"
    acks_late = True


def _body_of_a_device_task(**arguments: Any) -> None:
    raise RuntimeError("device tasks run on a device worker only")


for primitive in PRIMITIVES:
    shared_task(_body_of_a_device_task, name=TASK_PREFIX + primitive, base=DeviceTask)
