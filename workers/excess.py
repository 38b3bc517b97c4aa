"""What a worker holds beyond what it should, so that another may run it. Pure."""

from collections.abc import Iterable

from workers.jobs import Job


def excess(jobs: Iterable[Job], model: str, lane: str, cost: int) -> list[Job]:
    """Jobs of a queue that are not on the device and exceed `cost` together with those before them, never the first.

    What was redelivered stays where it is: it is being watched, and two workers could else pass it to and fro.
    """
    held = [job for job in jobs if job.request.model == model and job.request.lane == lane]
    spare = []
    for index, job in enumerate(sorted(held, key=lambda job: job.launched is None)):
        cost -= job.request.cost
        if index and cost < 0 and job.launched is None and not job.deliveries[0].redelivered:
            spare.append(job)
    return spare
