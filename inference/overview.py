"""Models and fleet as JSON, for `GET /v1/models` and `GET /health`, in words of the SIE SDK and of OpenAI at once."""

from collections.abc import Iterator, Mapping
from typing import Any

from catalog.snapshot import DEFAULT_PROFILE, Model, Resolved, Snapshot
from inference.fleet import Fleet, ModelState

OWNER = "shoal"


def model_list(catalog: Snapshot, fleet: Fleet) -> dict[str, Any]:
    """`models` is read by the SDK, `data` by OpenAI's clients. A variant `model:profile` is an entry of its own."""
    infos = [model_info(catalog.resolve(name), catalog, fleet) for name in catalog.names()]
    plain = ("id", "object", "created", "owned_by")
    return {"models": infos, "object": "list", "data": [{name: info[name] for name in plain} for info in infos]}


def model_info(resolved: Resolved, catalog: Snapshot, fleet: Fleet) -> dict[str, Any]:
    model, spec = resolved.model, resolved.model.spec
    name = spec.model if resolved.profile == DEFAULT_PROFILE else f"{spec.model}:{resolved.profile}"
    found = fleet.state(spec)
    return {
        "id": name,
        "object": "model",
        "created": catalog.version // 1000,  # a version is the time of its publication, in milliseconds
        "owned_by": OWNER,
        "name": name,
        "description": model.description,
        "primitives": list(spec.primitives),
        "inputs": list(spec.inputs),
        "outputs": list(spec.outputs),
        "dims": dict(spec.dims),
        "dimensions": sorted(spec.matryoshka),
        "max_sequence_length": spec.max_tokens,
        "revision": spec.source.revision,
        "aliases": list(model.aliases),
        "pool": spec.pool,
        "pinned": model.pinned,
        "profiles": {profile: {"is_default": profile == DEFAULT_PROFILE} for profile in model.profiles},
        "capabilities": None,
        **_state(found),
    }


def _state(found: ModelState) -> dict[str, Any]:
    error = found.error
    return {
        "loaded": found.state == "loaded",
        "state": found.state,
        "stage": found.stage or None,
        "progress": found.progress if found.state == "loading" else None,
        "workers": list(found.workers),
        "facts": dict(found.facts),
        "last_error": None
        if error is None
        else {
            "code": error.get("code", ""),
            "message": error.get("message", ""),
            "attempts": error.get("attempts", 1),
            "permanent": error.get("permanent", False),
        },
    }


def health(catalog: Snapshot, fleet: Fleet, is_ready: bool) -> dict[str, Any]:
    """The body from which the SDK reads capacity; a device is what it calls a GPU."""
    workers = [_worker(beat) for beat in fleet.beats]
    devices = sorted({worker["gpu"] for worker in workers})
    return {
        "status": "healthy" if is_ready else "degraded",
        "type": "gateway",
        "cluster": {
            "worker_count": len(workers),
            "gpu_count": len(workers),
            "models_loaded": sum(len(worker["loaded_models"]) for worker in workers),
            "total_qps": 0.0,
        },
        "configured_gpu_types": devices,
        "live_gpu_types": devices,
        "workers": workers,
        "models": [_served(model, fleet) for model in catalog.models.values()],
    }


def _worker(beat: Mapping[str, Any]) -> dict[str, Any]:
    models = beat.get("models", ())
    memory = beat.get("memory", {})
    return {
        "name": beat.get("id", ""),
        "url": "",
        "pool": beat.get("pool", ""),
        "gpu": beat.get("device", ""),
        "gpu_count": 1,
        "ready_gpu_slots": 0 if beat.get("draining") else 1,
        "healthy": not beat.get("draining", False),
        "queue_depth": sum(model.get("waiting", 0) for model in models),
        "pending_cost": sum(model.get("waiting_cost", 0) for model in models),
        "inflight_batches": beat.get("flights", 0),
        "loaded_models": [model.get("model", "") for model in models if model.get("state") == "loaded"],
        "memory_used_bytes": memory.get("used", 0),
        "memory_total_bytes": memory.get("capacity", 0),
        "bundle": ",".join(engine.get("bundle", "") for engine in beat.get("engines", ())),
        "bundle_config_hash": "",
    }


def _served(model: Model, fleet: Fleet) -> dict[str, Any]:
    states = list(states_of(model.spec.digest, fleet))
    return {
        "name": model.spec.model,
        "state": fleet.state(model.spec).state,
        "worker_count": sum(1 for _, state in states if state.get("state") == "loaded"),
        "gpu_types": sorted({str(beat.get("device", "")) for beat, _ in states}),
        "total_queue_depth": sum(state.get("waiting", 0) for _, state in states),
    }


def states_of(digest: str, fleet: Fleet) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Beat and model state of every worker that knows the model."""
    for beat in fleet.beats:
        for state in beat.get("models", ()):
            if state.get("digest") == digest:
                yield beat, state
