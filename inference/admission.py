"""Whether a request may join its queue: one that could not be answered in time is turned away at the door at once."""

import time

from inference import metrics
from inference.calls import Accepted
from inference.forecast import retry_after
from inference.queues import QueueReader
from protocol import clock
from protocol.errors import TooManyRequests


def admit(queues: QueueReader, accepted: Accepted, held: float = 0.0) -> None:
    """Raises TooManyRequests, which says when there would be room. `held` is cost that waits before it in the gateway.

    Where nothing waits in front it is never refused: a load has to be asked for by somebody, and the pace of a worker
    that has become faster is learned from what it runs.
    """
    spec, request = accepted.spec, accepted.request
    forecast = queues.forecast(spec.model, request.lane, time.monotonic())
    if forecast is None:
        return
    ahead = queues.ahead(spec, request.lane, forecast) + held
    answer_s, left_s = forecast.answer_s(ahead, request.cost), request.deadline - clock.now()
    if ahead <= 0 or answer_s <= left_s:
        return
    queues.refused(accepted.queue)
    metrics.REFUSED.labels(spec.model, request.lane).inc()
    metrics.REFUSED_COST.labels(spec.model, request.lane).inc(request.cost)
    raise TooManyRequests(
        f"model {spec.model!r} would take about {answer_s:.1f} s to answer; the call has {max(left_s, 0.0):.1f} s left",
        retry_after=retry_after(answer_s - left_s),
    )
