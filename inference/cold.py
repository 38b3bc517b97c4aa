"""How long a caller waits for a model that nobody serves or has loaded. Pure: time and fleet are passed in."""

from dataclasses import dataclass

from inference.fleet import Fleet
from protocol.errors import GatewayTimeout, ModelLoading, Provisioning, ShoalError
from protocol.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest waits, in seconds; `total` lasts until the call's own deadline."""

    provision: float
    cold: float
    total: float
    word: float = 0.0  # longer than that, for a worker's word of what it had on its device


def next_look(waited: float, patience: Patience) -> float:
    """Seconds until the wait should be thought over again."""
    ahead = [mark - waited for mark in (patience.cold, patience.total + patience.word) if mark > waited]
    return min(*ahead, patience.provision) if ahead else 0.0


def reason_to_stop(spec: ModelSpec, fleet: Fleet, waited: float, patience: Patience, now: float) -> ShoalError | None:
    """The error that ends the wait, if it is over. A view of the fleet that is not fresh ends no wait."""
    if waited >= patience.total:
        is_over = waited >= patience.total + patience.word
        return GatewayTimeout("no reply before the deadline") if is_over else None
    if not fleet.is_fresh(now):
        return None
    if waited >= patience.provision and not fleet.serves(spec.pool):
        return Provisioning(f"no worker serves the pool {spec.pool!r} of model {spec.model!r} yet")
    found = fleet.state(spec)
    if waited >= patience.cold and not found.workers:
        extra = {"state": found.stage, "progress": found.progress}
        return ModelLoading(f"model {spec.model!r} is being loaded; try again in a moment", extra=extra)
    return None
