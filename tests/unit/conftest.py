"""A dispatcher with real engine processes, ended after the test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog.snapshot import Model
from tests.unit.workers_doubles import RecordingOutbox, Start, start_dispatcher
from workers.dispatcher import Dispatcher


@pytest.fixture
def outbox() -> RecordingOutbox:
    return RecordingOutbox()


@pytest.fixture
def start(tmp_path: Path, outbox: RecordingOutbox) -> Iterator[Start]:
    started: list[Dispatcher] = []

    def start(*models: Model, **config: Any) -> Dispatcher:
        started.append(start_dispatcher(tmp_path, outbox, models, **config))
        return started[-1]

    yield start
    for dispatcher in started:
        dispatcher.drain(0.0)
