"""The OpenAPI description of the hot routes. Nothing here runs for a request: the dialects read bodies themselves."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers as fields

from protocol.names import LANES
from protocol.options import DTYPES, OUTPUTS, OVERFLOWS

_CALLS, _TASKS, _MODELS, _PROBES = (["calls"], ["tasks"], ["models"], ["probes"])
_KEY: Any = [{"apiKey": []}]  # named by catalog.access
_LANE = OpenApiParameter(
    "X-Shoal-Lane", str, OpenApiParameter.HEADER, enum=LANES, description="How urgent the call is; else the key's lane."
)
_PREFER = OpenApiParameter(
    "Prefer", str, OpenApiParameter.HEADER, description="`respond-async`: answer 202 with a task at once."
)
_WAIT = OpenApiParameter("wait", float, description="Answer when the task has ended, or after so many seconds (to 60).")


class ItemSchema(fields.Serializer[Any]):
    id = fields.CharField(required=False, help_text="Echoed.")
    text = fields.CharField(required=False, allow_blank=True)
    token_ids = fields.ListField(
        child=fields.IntegerField(min_value=0),
        required=False,
        help_text="In the model's own vocabulary, not tiktoken's.",
    )


class EncodeOptionsSchema(fields.Serializer[Any]):
    is_query = fields.BooleanField(required=False, allow_null=True)
    prompt = fields.CharField(required=False, allow_null=True, allow_blank=True)
    dimensions = fields.IntegerField(required=False, allow_null=True, min_value=1)
    normalize = fields.BooleanField(required=False, allow_null=True)
    overflow = fields.ChoiceField(OVERFLOWS, required=False, allow_null=True)
    profile = fields.CharField(required=False, allow_null=True)


class EncodeParamsSchema(fields.Serializer[Any]):
    output_types = fields.ListField(child=fields.ChoiceField(OUTPUTS), required=False, allow_null=True)
    output_dtype = fields.ChoiceField(DTYPES, required=False, allow_null=True)
    instruction = fields.CharField(required=False, allow_null=True, allow_blank=True)
    options = EncodeOptionsSchema(required=False, allow_null=True)


class EncodeSchema(fields.Serializer[Any]):
    items = ItemSchema(many=True)
    params = EncodeParamsSchema(required=False, allow_null=True)


class DenseSchema(fields.Serializer[Any]):
    dims = fields.IntegerField()
    dtype = fields.CharField()
    values = fields.ListField(child=fields.FloatField())
    scale = fields.FloatField(required=False, help_text="int8 and uint8: value × scale + offset is the float again.")
    offset = fields.FloatField(required=False)


class EncodedItemSchema(fields.Serializer[Any]):
    id = fields.CharField(required=False)
    dense = DenseSchema(required=False)


class UsageSchema(fields.Serializer[Any]):
    input_tokens = fields.IntegerField()


class TimingSchema(fields.Serializer[Any]):
    total_ms = fields.FloatField()
    queue_ms = fields.FloatField(required=False)
    tokenization_ms = fields.FloatField(required=False)
    inference_ms = fields.FloatField(required=False)
    postprocessing_ms = fields.FloatField(required=False)


class EncodedSchema(fields.Serializer[Any]):
    model = fields.CharField()
    items = EncodedItemSchema(many=True)
    usage = UsageSchema()
    timing = TimingSchema()


class EmbeddingsSchema(fields.Serializer[Any]):
    model = fields.CharField()
    input = fields.JSONField(help_text="A string, strings, token ids, or lists of token ids.")
    encoding_format = fields.ChoiceField(("float", "base64"), required=False, allow_null=True)
    dimensions = fields.IntegerField(required=False, allow_null=True, min_value=1)
    user = fields.CharField(required=False)


class EmbeddingSchema(fields.Serializer[Any]):
    object = fields.CharField()
    index = fields.IntegerField()
    embedding = fields.JSONField(help_text="Numbers, or base64 of little-endian float32.")


class TokensSchema(fields.Serializer[Any]):
    prompt_tokens = fields.IntegerField()
    total_tokens = fields.IntegerField()


class EmbeddedSchema(fields.Serializer[Any]):
    object = fields.CharField()
    data = EmbeddingSchema(many=True)  # type: ignore[assignment]  # the metaclass takes fields out of the class
    model = fields.CharField()
    usage = TokensSchema()


class NewTaskSchema(EncodeSchema):
    primitive = fields.ChoiceField(("encode",))
    model = fields.CharField()
    lane = fields.ChoiceField(LANES, required=False, allow_null=True)
    timeout_s = fields.FloatField(required=False, allow_null=True, min_value=0)


class TaskSchema(fields.Serializer[Any]):
    id = fields.CharField()
    object = fields.CharField()
    state = fields.ChoiceField(("queued", "running", "succeeded", "failed", "cancelled", "expired"))
    primitive = fields.CharField()
    model = fields.CharField()
    lane = fields.CharField()
    created = fields.FloatField(help_text="Unix seconds.")
    deadline = fields.FloatField(help_text="Unix seconds.")
    started = fields.FloatField(required=False, help_text="Unix seconds.")
    result = fields.JSONField(required=False, help_text="The body the waiting call would have had.")
    error = fields.JSONField(required=False)


class CountsSchema(fields.Serializer[Any]):
    requests = fields.IntegerField()
    items = fields.IntegerField()
    cost = fields.IntegerField(help_text="As gateways estimate it, in padded-token equivalents.")


class QueueSchema(CountsSchema):
    model = fields.CharField()
    lane = fields.ChoiceField(LANES)
    pool = fields.CharField()
    queue = fields.CharField(help_text="Its name at the broker.")
    state = fields.CharField(help_text="The model's, as in `/v1/models`.")
    workers = fields.IntegerField(help_text="That have the model loaded.")
    at_broker = CountsSchema()
    held = CountsSchema(help_text="By workers, running work included.")
    oldest_s = fields.FloatField(allow_null=True, help_text="Age of the oldest request that waits.")
    predicted_wait_s = fields.FloatField(allow_null=True, help_text="Of a request that comes now; null: not known.")


class QueuesSchema(fields.Serializer[Any]):
    object = fields.CharField()
    age_s = fields.FloatField(allow_null=True, help_text="How long ago the gateway looked.")
    data = QueueSchema(many=True)  # type: ignore[assignment]  # the metaclass takes fields out of the class


class ErrorSchema(fields.Serializer[Any]):
    error = fields.JSONField(help_text="`code`, `message`, and where it helps `param` and `retry_after`.")


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

ENCODE = extend_schema(
    operation_id="encode",
    tags=_CALLS,
    auth=_KEY,
    parameters=[_LANE, _PREFER],
    request={"application/json": EncodeSchema, "application/msgpack": EncodeSchema},
    responses={
        (200, "application/json"): EncodedSchema,
        (200, "application/msgpack"): EncodedSchema,
        202: TaskSchema,
        **_ERRORS,
    },
)
EMBEDDINGS = extend_schema(
    operation_id="embeddings",
    tags=_CALLS,
    auth=_KEY,
    parameters=[_LANE],
    request=EmbeddingsSchema,
    responses={200: EmbeddedSchema, **_ERRORS},
)
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
