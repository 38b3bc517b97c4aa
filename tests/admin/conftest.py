"""A Redis that holds whatever beats a test writes, and the settings that make the admin look there."""

import datetime
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from pytest_django.fixtures import Settings

from catalog.models import ApiKey, LoRA, Pool, RegisteredModel, Usage
from protocol import names

GIB = 1 << 30


@pytest.fixture
def state(redis_url: str, settings: Settings) -> Iterator["redis.Redis"]:
    """An empty Redis that is both broker and state."""
    settings.SHOAL_REDIS_URL = settings.SHOAL_BROKER_URL = redis_url
    with redis.Redis.from_url(redis_url) as client:
        yield client


Beat = Callable[..., None]


@pytest.fixture
def beat(state: "redis.Redis") -> Beat:
    """Write one worker's beat, as its heartbeat thread would."""

    def write(worker_id: str = "w1", **fields: Any) -> None:
        now = time.time()
        content = {
            "id": worker_id,
            "pool": "default",
            "device": "cpu",
            "pid": 4711,
            "started": now - 7200,
            "memory": {"capacity": 4 * GIB, "used": GIB},
            "engines": [{"bundle": "base", "pid": 4712, "state": "up"}],
            "models": [],
            "counters": {"forwards": 12, "items": 345, "evictions": 1},
            **fields,
        }
        state.zadd(names.WORKERS, {worker_id: now})
        state.set(names.worker(worker_id), json.dumps(content), ex=5)

    return write


EVIL = "<img src=x onerror=alert(1)>\"'"


def entry(name: str, **fields: Any) -> dict[str, Any]:
    """A small valid entry document."""
    return {
        "id": name,
        "family": "fake",
        "primitives": ["encode"],
        "outputs": ["dense"],
        "dims": {"dense": 8},
        **fields,
    }


def registered(name: str, **decisions: Any) -> RegisteredModel:
    """A model in the database as the sync of a file leaves it, with an administrator's decisions on top."""
    row = RegisteredModel(source=RegisteredModel.Source.FILE, **decisions)
    row.set_entry(entry(name))
    row.save()
    return row


def api_key(prefix: str, **fields: Any) -> ApiKey:
    return ApiKey.objects.create(**{"name": f"key {prefix}", "prefix": prefix, "digest": "d" * 64, **fields})


@pytest.fixture
def rows(db: None) -> None:
    """Two of everything that the admin lists, so that a page which asks once per row shows it."""
    for number in (1, 2):
        pool = Pool.objects.create(name=f"pool-{number}")
        model = registered(f"org/model-{number}", pool=pool)
        LoRA.objects.create(name=f"lora-{number}", base=model, repo="org/weights")
        api_key(f"prefix{number}")
        Usage.objects.create(key=f"prefix{number}", model=model.name, day=datetime.date(2026, 1, number))


def resident(model: str, **fields: Any) -> dict[str, Any]:
    """One model of a beat, loaded unless told otherwise."""
    return {"model": model, "digest": "0" * 16, "state": "loaded", "bytes": 90 << 20, "packed": True, **fields}
