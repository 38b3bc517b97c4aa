"""Probes: is the process alive, can it answer calls, what does it know of the fleet, what has it counted."""

import time

from django.http import HttpResponse, HttpResponseRedirect
from prometheus_client import CONTENT_TYPE_LATEST

from inference import overview
from inference.gateway import Gateway
from inference.hot import HotRequest, hot
from inference.metrics import exposition
from inference.responses import json_response, respond
from inference.schema import HEALTH, HIDDEN, LIVE, METRICS, READY
from inference.views import queues

TEXT = "text/plain; charset=utf-8"


@hot(is_open=True, get=HIDDEN)
async def root(request: HotRequest) -> HttpResponse:
    return HttpResponseRedirect("/docs")


@hot(is_open=True, get=LIVE)
async def healthz(request: HotRequest) -> HttpResponse:
    """The process answers."""
    return respond(b"ok", TEXT)


@hot(is_open=True, get=LIVE)
async def livez(request: HotRequest) -> HttpResponse:
    """The process answers."""
    return respond(b"ok", TEXT)


@hot(is_open=True, get=READY)
async def readyz(request: HotRequest) -> HttpResponse:
    """Calls can be answered now."""
    reasons = unready(request.gateway, time.monotonic())
    if reasons:
        return json_response({"status": "unready", "reasons": reasons}, status=503)
    return respond(b"ok", TEXT)


@hot(get=HEALTH)
async def health(request: HotRequest) -> HttpResponse:
    """Workers, models and queues in one body."""
    gateway = request.gateway
    is_ready = not unready(gateway, time.monotonic())
    return json_response(overview.health(gateway.catalog.current, gateway.fleet.current, is_ready))


@hot(is_open=True, get=METRICS)
async def metrics(request: HotRequest) -> HttpResponse:
    """Prometheus text."""
    return respond(exposition(request.gateway.fleet.current, queues.current(request.gateway)), CONTENT_TYPE_LATEST)


def unready(gateway: Gateway, now: float) -> list[dict[str, str]]:
    """What is missing, as code and sentence; costs no look at anything but memory."""
    missing = []
    if not gateway.mailbox.connected:
        missing.append({"code": "redis_unreachable", "message": "Redis, which carries replies, cannot be reached"})
    if not gateway.publisher.connected:
        missing.append({"code": "broker_unreachable", "message": "the broker cannot be reached"})
    if not gateway.fleet.current.is_fresh(now) or not gateway.fleet.current.beats:
        missing.append({"code": "no_workers", "message": "no worker has been heard of in the last seconds"})
    if len(gateway.mailbox) >= gateway.limits.max_pending:
        missing.append({"code": "calls_full", "message": "as many calls wait in this gateway as may"})
    if not gateway.catalog.current.models:
        missing.append({"code": "no_models", "message": "the catalog is empty or was not loaded yet"})
    return missing
