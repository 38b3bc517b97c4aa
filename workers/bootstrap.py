"""Builds a device worker from Django's settings; nothing else of the worker reads them."""

import os
import socket
from collections.abc import Callable
from typing import Any

import redis
from django.conf import settings

from catalog.follow import SnapshotFollower
from catalog.snapshot import Snapshot
from protocol import links
from workers import compression, decoding, devices, redis_channel
from workers.bodies import BodyReader
from workers.bridge import Bridge
from workers.brokers import Holdings
from workers.claiming import Claiming
from workers.config import WorkerConfig
from workers.custody import Custody
from workers.desk import Desk
from workers.dispatcher import Dispatcher
from workers.forwarding import Forwarding, Publisher
from workers.heartbeat import Heartbeat
from workers.intake import Intake
from workers.leases import Leases
from workers.links import connect
from workers.neighbours import Neighbours
from workers.redelivery import Redelivery
from workers.replies import Outbox
from workers.runtime import Runtime
from workers.subscriptions import Subscriptions
from workers.wake import Wake

CONFIRMED = {"confirm_publish": True}  # a task is acknowledged in one queue only when it is safe in the next


def install() -> None:
    """What must be so before Celery looks at the broker."""
    redis_channel.install()
    compression.limit(settings.SHOAL_MAX_BODY_BYTES)
    decoding.limit()


def build(app: Any) -> Runtime:
    """Nothing runs yet but the follower of the catalog."""
    config = worker_config()
    follower = SnapshotFollower(settings.SHOAL_REDIS_URL).start()
    return assemble(app, config, lambda: follower.current)


def worker_config() -> WorkerConfig:
    device = devices.resolve(settings.SHOAL_DEVICE)
    gpu: dict[str, Any] = {"budget": 65536, "target_s": 0.1, "depth": 2} if device != "cpu" else {}
    return WorkerConfig(
        worker_id=settings.SHOAL_WORKER_ID,
        data=settings.SHOAL_DATA,
        pool=settings.SHOAL_POOL,
        device=device,
        memory_bytes=settings.SHOAL_MEMORY_BYTES or devices.memory_bytes(device),
        host_bytes=settings.SHOAL_HOST_MEMORY_BYTES or devices.host_bytes(device),
        idle_unload_s=settings.SHOAL_IDLE_UNLOAD_S,
        loads_at_once=settings.SHOAL_LOADS_AT_ONCE,
        hang_s=settings.SHOAL_HANG_S,
        load_hang_s=settings.SHOAL_LOAD_HANG_S,
        models_folder=settings.SHOAL_MODELS,
        bundles_folder=settings.SHOAL_BUNDLES,
        offline=settings.SHOAL_OFFLINE,
        threads=devices.cpu_count(),
        **gpu,
    )


def assemble(app: Any, config: WorkerConfig, catalog: Callable[[], Snapshot]) -> Runtime:
    runtime = Runtime()
    runtime.catalog = catalog
    runtime.pool = config.pool
    runtime.prefetch = settings.SHOAL_PREFETCH
    runtime.drain_s = settings.SHOAL_DRAIN_S
    runtime.bridge = Bridge()
    runtime.custody = Custody()
    runtime.holdings = Holdings()
    runtime.subscriptions = Subscriptions(config.pool)
    runtime.outbox = Outbox(
        settings.SHOAL_REDIS_URL, settings.SHOAL_TASK_TTL_S, runtime.bridge, runtime.custody, config
    )
    runtime.dispatcher = Dispatcher(config, catalog, runtime.outbox)
    runtime.neighbours = Neighbours(settings.SHOAL_REDIS_URL, config.pool, _boot_name(config), runtime.held_models)
    runtime.claiming = Claiming(
        runtime.subscriptions, runtime.dispatcher.standing, runtime.neighbours.news, runtime.neighbours.nudge
    )
    runtime.intake = Intake(runtime.outbox)
    runtime.desk = _desk(app, config, runtime)
    runtime.outbox.on_redelivered_end = runtime.on_redelivered_end
    runtime.outbox.on_written = runtime.desk.bodies.forget
    runtime.wake = Wake(
        settings.SHOAL_REDIS_URL, config.pool, runtime.cancelled, runtime.on_queues, runtime.dispatcher.cancel
    )
    runtime.heartbeat = Heartbeat(settings.SHOAL_REDIS_URL, config.worker_id, runtime.beat, runtime.ailment)
    runtime.leases = None
    if links.is_redis(settings.SHOAL_BROKER_URL):
        runtime.leases = Leases(settings.SHOAL_BROKER_URL, settings.SHOAL_VISIBILITY_S, runtime.holdings.tags)
    return runtime


def _boot_name(config: WorkerConfig) -> str:
    """Tells apart two workers that were given one id, and a worker from its predecessor."""
    return f"{config.worker_id}.{os.getpid()}@{socket.gethostname()}"


def _reader(state: "redis.Redis") -> Callable[[str], bytes | None]:
    def read(key: str) -> bytes | None:
        value: Any = state.get(key)
        return value if isinstance(value, bytes) else None

    return read


def _desk(app: Any, config: WorkerConfig, runtime: Runtime) -> Desk:
    state = connect(settings.SHOAL_REDIS_URL)
    forwarding = Forwarding(
        state=state,
        publisher=Publisher(app.connection_for_write(transport_options=CONFIRMED)),
        catalog=runtime.catalog,
        bridge=runtime.bridge,
        custody=runtime.custody,
        ttl_s=settings.SHOAL_TASK_TTL_S,
        max_bytes=settings.SHOAL_MAX_BODY_BYTES,
        origin=_boot_name(config),
    )
    return Desk(
        submit=runtime.submit,
        cancel=runtime.dispatcher.cancel,
        outbox=runtime.outbox,
        custody=runtime.custody,
        bodies=BodyReader(
            settings.SHOAL_DATA / "blobs", _reader(state), state.unlink, max_bytes=settings.SHOAL_MAX_BODY_BYTES
        ),
        intake=runtime.intake,
        forwarding=forwarding,
        redelivery=Redelivery(state, runtime.bridge, runtime.custody, runtime.submit, settings.SHOAL_TASK_TTL_S),
    )
