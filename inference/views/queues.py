"""What waits, and how long a request that comes now would wait with it."""

import time

from django.http import HttpResponse

from inference.backlog import Backlog, backlogs
from inference.gateway import Gateway
from inference.hot import HotRequest, hot
from inference.responses import json_response
from inference.schema import LIST_QUEUES
from protocol import clock


@hot(get=LIST_QUEUES)
async def queues(request: HotRequest) -> HttpResponse:
    """Every model and lane: depth, age and predicted wait."""
    data = [one.to_json() for one in current(request.gateway)]
    age = time.monotonic() - request.gateway.queues.current.read_at
    return json_response({"object": "list", "age_s": round(age, 3) if age < 1e6 else None, "data": data})


def current(gateway: Gateway) -> list[Backlog]:
    return backlogs(gateway.catalog.current, gateway.fleet.current, gateway.queues, time.monotonic(), clock.now())
