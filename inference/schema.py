"""The OpenAPI description of the hot routes. Nothing here runs for a request: the dialects read bodies themselves."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from inference.audio_shapes import TranscribedSchema, TranscriptionSchema, TranslationSchema
from inference.queue_shapes import QueuesSchema
from inference.rerank_shapes import (
    RerankedSchema,
    RerankSchema,
    TeiEmbedSchema,
    TeiErrorSchema,
    TeiRankSchema,
    TeiRerankSchema,
)
from inference.shapes import (
    EmbeddedSchema,
    EmbeddingsSchema,
    EncodedSchema,
    EncodeSchema,
    ErrorSchema,
    ExtractedSchema,
    ExtractSchema,
    NewTaskSchema,
    ScoreSchema,
    ScoresSchema,
    TaskSchema,
)
from protocol.names import LANES

_CALLS, _TASKS, _MODELS, _PROBES = (["calls"], ["tasks"], ["models"], ["probes"])
_BODY_TYPES = ("application/json", "application/msgpack")
_KEY: Any = [{"apiKey": []}]  # named by catalog.access
_LANE = OpenApiParameter(
    "X-Shoal-Lane", str, OpenApiParameter.HEADER, enum=LANES, description="How urgent the call is; else the key's lane."
)
_PREFER = OpenApiParameter(
    "Prefer", str, OpenApiParameter.HEADER, description="`respond-async`: answer 202 with a task at once."
)
_WAIT = OpenApiParameter("wait", float, description="Answer when the task has ended, or after so many seconds (to 60).")


_ERRORS = {
    400: OpenApiResponse(ErrorSchema, "Something in the call is wrong; `param` names it."),
    401: OpenApiResponse(ErrorSchema, "No API key, or one that does not count."),
    403: OpenApiResponse(ErrorSchema, "The key may not do this."),
    404: OpenApiResponse(ErrorSchema, "No such model, task or path."),
    413: OpenApiResponse(ErrorSchema, "The body is too large."),
    429: OpenApiResponse(ErrorSchema, "It would not be answered in time; `Retry-After` says when it would."),
    500: OpenApiResponse(ErrorSchema, "The forward failed."),
    502: OpenApiResponse(ErrorSchema, "The model cannot be loaded."),
    503: OpenApiResponse(ErrorSchema, "Not now; `Retry-After` says when to try again."),
    504: OpenApiResponse(ErrorSchema, "The deadline passed."),
}
_FOUND = {status: _ERRORS[status] for status in (401, 404, 503)}


def _call(primitive: str, asked: Any, answered: Any) -> Any:
    """A route that runs models, in JSON and MessagePack."""
    answers: dict[Any, Any] = {(200, kind): answered for kind in _BODY_TYPES}
    return extend_schema(
        operation_id=primitive,
        tags=_CALLS,
        auth=_KEY,
        parameters=[_LANE, _PREFER],
        request=dict.fromkeys(_BODY_TYPES, asked),
        responses={**answers, 202: TaskSchema, **_ERRORS},
    )


ENCODE = _call("encode", EncodeSchema, EncodedSchema)
SCORE = _call("score", ScoreSchema, ScoresSchema)
EXTRACT = _call("extract", ExtractSchema, ExtractedSchema)
EMBEDDINGS = extend_schema(
    operation_id="embeddings",
    tags=_CALLS,
    auth=_KEY,
    parameters=[_LANE],
    request=EmbeddingsSchema,
    responses={200: EmbeddedSchema, **_ERRORS},
)


def _heard(operation_id: str, asked: Any) -> Any:
    """A route that writes down speech: a form in, JSON or plain text out."""
    answers: dict[Any, Any] = {(200, "application/json"): TranscribedSchema, (200, "text/plain"): OpenApiTypes.STR}
    return extend_schema(
        operation_id=operation_id,
        tags=_CALLS,
        auth=_KEY,
        parameters=[_LANE],
        request={"multipart/form-data": asked},
        responses={**answers, **_ERRORS},
    )


TRANSCRIPTIONS = _heard("transcriptions", TranscriptionSchema)
TRANSLATIONS = _heard("translations", TranslationSchema)


def _reworded(operation_id: str, asked: Any, answered: Any, wrong: Any = ErrorSchema) -> Any:
    """A route that runs models in another API's wording, in JSON alone."""
    errors = {status: OpenApiResponse(wrong, response.description) for status, response in _ERRORS.items()}
    return extend_schema(
        operation_id=operation_id,
        tags=_CALLS,
        auth=_KEY,
        parameters=[_LANE],
        request=asked,
        responses={200: answered, **errors},
    )


RERANK = _reworded("rerank", RerankSchema, RerankedSchema)
RERANK_V2 = _reworded("rerank_v2", RerankSchema, RerankedSchema)
TEI_RERANK = _reworded("tei_rerank", TeiRerankSchema, TeiRankSchema(many=True), TeiErrorSchema)
TEI_EMBED = _reworded("tei_embed", TeiEmbedSchema, OpenApiTypes.OBJECT, TeiErrorSchema)
CREATE_TASK = extend_schema(
    operation_id="create_task", tags=_TASKS, auth=_KEY, request=NewTaskSchema, responses={202: TaskSchema, **_ERRORS}
)
GET_TASK = extend_schema(
    operation_id="get_task",
    tags=_TASKS,
    auth=_KEY,
    parameters=[_WAIT],
    responses={200: TaskSchema, **_FOUND, 400: _ERRORS[400]},
)
CANCEL_TASK = extend_schema(
    operation_id="cancel_task",
    tags=_TASKS,
    auth=_KEY,
    request=None,
    responses={200: TaskSchema, 409: OpenApiResponse(ErrorSchema, "The task has ended."), **_FOUND},
)
LIST_MODELS = extend_schema(
    operation_id="list_models", tags=_MODELS, auth=_KEY, responses={200: OpenApiTypes.OBJECT, 401: _ERRORS[401]}
)
GET_MODEL = extend_schema(
    operation_id="get_model", tags=_MODELS, auth=_KEY, responses={200: OpenApiTypes.OBJECT, **_FOUND}
)
LIST_QUEUES = extend_schema(
    operation_id="list_queues", tags=_MODELS, auth=_KEY, responses={200: QueuesSchema, 401: _ERRORS[401]}
)
LIVE = extend_schema(tags=_PROBES, auth=[], responses={(200, "text/plain"): str})
READY = extend_schema(
    operation_id="readyz",
    tags=_PROBES,
    auth=[],
    responses={(200, "text/plain"): str, 503: OpenApiResponse(OpenApiTypes.OBJECT, "What is missing.")},
)
HEALTH = extend_schema(
    operation_id="health", tags=_PROBES, auth=_KEY, responses={200: OpenApiTypes.OBJECT, 401: _ERRORS[401]}
)
METRICS = extend_schema(operation_id="metrics", tags=_PROBES, auth=[], responses={(200, "text/plain"): str})
HIDDEN = extend_schema(exclude=True)
