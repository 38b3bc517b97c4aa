"""What a worker's dispatcher holds, in the words that claims are decided in."""

from typing import TYPE_CHECKING

from workers.claims import Leaver, Standing
from workers.served import ServedModel, State

if TYPE_CHECKING:
    from workers.dispatcher import Dispatcher

ON_DEVICE = (State.LOADED, State.LOADING)
COMING = (State.FETCHING, State.WAITING, State.LOADING)


def takes(dispatcher: "Dispatcher", digest: str) -> bool:
    """Whether messages for this model are taken at once: it is on the device or on its way, and need not make room."""
    model = dispatcher.models.get(digest)
    return model is not None and _is_here(model)


def here(dispatcher: "Dispatcher") -> frozenset[str]:
    """Names of all such models."""
    return frozenset(model.spec.model for model in dispatcher.models.values() if _is_here(model))


def standing(dispatcher: "Dispatcher", now: float) -> Standing:
    models = [model for model in dispatcher.models.values() if model.state is not State.ABSENT or model.has_work]
    memory, by_name = dispatcher.evictions.memory(), {model.spec.model: model for model in models}
    return Standing(
        here=here(dispatcher),
        can_load=sum(map(_is_coming, models)) < dispatcher.config.loads_at_once,
        pressing=max((model.urgency(now) for model in models if model.has_work), default=0.0),
        free=memory["capacity"] - memory["used"],
        leavers=tuple(_leaver(by_name[name], now) for name in dispatcher.evictions.leaving_order(now)),
        wakes={model.spec.model: model.wake_s for model in dispatcher.models.values() if model.is_parked},
    )


def _is_here(model: ServedModel) -> bool:
    if model.state in ON_DEVICE:
        return model.leaving_since is None
    return model.has_work and model.state not in (State.UNLOADING, State.FAILED)


def _is_coming(model: ServedModel) -> bool:
    return model.state in COMING or (model.state not in ON_DEVICE and model.has_work)


def _leaver(model: ServedModel, now: float) -> Leaver:
    return Leaver(model.need, model.return_s * min(model.demand.lately(now), 1.0))
