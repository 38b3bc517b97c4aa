"""`status`: processes, workers, models on their way and in place, and what waits in the queues."""

import argparse
import json
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import redis
from amqp.exceptions import AMQPError, NotFound
from kombu.connection import Connection

from admin import fleet
from catalog.tables import aligned
from project import env
from project.cli import environment, runfile, services, stop
from protocol import links, names


def run(options: argparse.Namespace) -> int:
    given = environment.apply(options)
    running = environment.attach(options)
    data = environment.data()
    settings = environment.settings()
    knows_redis = running is not None or bool(given.redis)
    seen = read_fleet(settings.SHOAL_REDIS_URL, settings.SHOAL_BROKER_URL) if knows_redis else None
    healthy = is_healthy(running, seen) and (not options.here or has_worker_of(socket.gethostname(), seen))
    if options.json:
        print(json.dumps(_as_json(running, seen, healthy)))
    else:
        print("\n".join(_as_text(running, seen, data)))
    return 0 if healthy else 1


def read_fleet(redis_url: str, broker_url: str) -> fleet.Fleet:
    """As the admin's fleet page, with the queues of a RabbitMQ too."""
    on_redis = links.is_redis(broker_url)
    with redis.Redis.from_url(redis_url, socket_timeout=2, socket_connect_timeout=2) as state:
        with redis.Redis.from_url(broker_url if on_redis else redis_url, socket_timeout=2) as broker:
            seen = fleet.read(state, broker if on_redis else None)
        if on_redis or seen.problem:
            return seen
        demanded = [name.decode() for name in state.zrange(names.DEMAND, 0, -1)]
    return replace(seen, queues=_rabbitmq_queues(broker_url, demanded))


def _rabbitmq_queues(url: str, demanded: list[str]) -> tuple[fleet.Queue, ...] | None:
    found = []
    try:
        with Connection(url, connect_timeout=3) as connection:
            for name in sorted(demanded):
                channel = connection.channel()  # asking for a queue that is gone closes the channel
                try:
                    depth = channel.queue_declare(name, passive=True).message_count
                except NotFound:
                    continue
                channel.close()
                found.append(fleet.queue(name, depth))
    except (OSError, AMQPError):
        return None
    return tuple(queue for queue in found if queue.messages)


def is_healthy(running: runfile.Running | None, seen: fleet.Fleet | None) -> bool:
    """Everything recorded lives and is ready, the gateway answers, and at least one worker beats."""
    if seen is None or seen.problem or not seen.workers:
        return False
    if running is None:  # a cluster, known by its Redis alone
        return True
    alive = all(stop.is_alive(process) and process.ready for process in running.processes)
    return alive and services.responds(f"{running.url}/livez")


def has_worker_of(host: str, seen: fleet.Fleet | None) -> bool:
    """Workers are named after their host unless SHOAL_WORKER_ID says otherwise."""
    own = env.text("SHOAL_WORKER_ID", host.split(".")[0])
    return seen is not None and any(worker.id.startswith(own) for worker in seen.workers)


def _as_json(running: runfile.Running | None, seen: fleet.Fleet | None, healthy: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"healthy": healthy, "running": running is not None}
    if running is not None:
        answer |= {"url": running.url, "flower_url": running.flower_url, "launcher": asdict(running.launcher)}
        answer["processes"] = [asdict(process) | {"alive": stop.is_alive(process)} for process in running.processes]
    return answer | {"fleet": asdict(seen) if seen else None}


def _as_text(running: runfile.Running | None, seen: fleet.Fleet | None, data: Path) -> list[str]:
    lines = [f"nothing runs with its data in {data}"]
    if running is not None:
        flower = f", Flower {running.flower_url}" if running.flower_url else ""
        lines = [f"{running.url}{flower}, data in {data}", "", _process_table(running)]
    if seen is None:
        return lines
    if seen.problem:
        return [*lines, "", seen.problem]
    return [*lines, "", _worker_table(seen), "", _model_table(seen), "", _queue_table(seen)]


def _process_table(running: runfile.Running) -> str:
    rows = [("process", "pid", "state", "restarts", "up")]
    for process in (running.launcher, *running.processes):
        state = "ready" if process.ready or process is running.launcher else "starting"
        state = state if stop.is_alive(process) else "gone"
        rows.append((process.name, str(process.pid), state, str(process.restarts), _ago(process.created)))
    return aligned(rows)


def _worker_table(seen: fleet.Fleet) -> str:
    rows = [("worker", "pool", "device", "memory", "engines", "clock")]
    for worker in seen.workers:
        memory = f"{_mb(worker.used)} of {_mb(worker.capacity)}"
        engines = ", ".join(worker.engines) or "none"
        rows.append((worker.id, worker.pool, worker.device, memory, engines, f"{worker.clock_ahead_s:+.0f} s"))
    return aligned(rows) if seen.workers else "no worker beats"


def _model_table(seen: fleet.Fleet) -> str:
    rows = [("model", "on", "state", "size", "waiting")]
    for worker in seen.workers:
        for model in worker.residents:
            is_moving = model.state in ("loading", "fetching", "waiting")
            state = f"{model.state} {model.progress:.0%}" if is_moving else model.state
            shown = f"{state}: {model.error}" if model.error else state
            rows.append((model.model, worker.id, shown, _mb(model.bytes), str(model.items)))
    return aligned(rows) if len(rows) > 1 else "no model is on a device yet; the first call loads one"


def _queue_table(seen: fleet.Fleet) -> str:
    if seen.queues is None:
        return "the queues could not be counted: the broker does not answer"
    rows = [("queue", "pool", "lane", "messages")]
    rows += [(queue.model, queue.pool, queue.lane, str(queue.messages)) for queue in seen.queues]
    return aligned(rows) if seen.queues else "all queues are empty"


def _ago(then: float) -> str:
    """Of a process on this machine, whose start is known by this machine's clock."""
    seconds = max(0, int(time.time() - then))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _mb(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
