"""The shapes of bodies on the hot routes, for OpenAPI alone: the dialects read and write bodies themselves."""

from typing import Any

from rest_framework import serializers as fields

from protocol.names import LANES
from protocol.options import DTYPES, OUTPUTS, OVERFLOWS, VOCABULARIES
from protocol.options.extract import LONG_TEXTS


class ImageSchema(fields.Serializer[Any]):
    data = fields.CharField(  # type: ignore[assignment]  # the metaclass takes fields out of the class
        required=False, help_text="Base64; bytes in MessagePack."
    )
    url = fields.CharField(required=False, help_text="In place of data, from a host that the operator allows.")
    format = fields.CharField(required=False, help_text="Such as `png`; else the bytes tell.")


class AudioSchema(ImageSchema):
    sample_rate = fields.IntegerField(required=False, help_text="Hz, of bare samples.")


class ItemSchema(fields.Serializer[Any]):
    id = fields.CharField(required=False, help_text="Echoed.")
    text = fields.CharField(required=False, allow_blank=True)
    token_ids = fields.ListField(
        child=fields.IntegerField(min_value=0),
        required=False,
        help_text="In the model's own vocabulary, not tiktoken's.",
    )
    images = ImageSchema(many=True, required=False)
    audio = AudioSchema(required=False)
    video = ImageSchema(required=False)
    document = ImageSchema(required=False)


class ChunkSchema(fields.Serializer[Any]):
    tokens = fields.IntegerField(required=False, min_value=16)
    overlap = fields.IntegerField(required=False, min_value=0)


class MuveraSchema(fields.Serializer[Any]):
    repetitions = fields.IntegerField(required=False, min_value=1)
    planes = fields.IntegerField(required=False, min_value=1)
    dims = fields.IntegerField(required=False, min_value=16)


class SmveSchema(fields.Serializer[Any]):
    width = fields.IntegerField(required=False, min_value=256)
    k = fields.IntegerField(required=False, min_value=1)


class EncodeOptionsSchema(fields.Serializer[Any]):
    is_query = fields.BooleanField(required=False, allow_null=True)
    prompt = fields.CharField(required=False, allow_null=True, allow_blank=True)
    dimensions = fields.IntegerField(required=False, allow_null=True, min_value=1)
    normalize = fields.BooleanField(required=False, allow_null=True)
    overflow = fields.ChoiceField(OVERFLOWS, required=False, allow_null=True)
    chunk = ChunkSchema(required=False, allow_null=True, help_text="A vector for each stretch of a long text.")
    muvera = MuveraSchema(required=False, allow_null=True, help_text="One dense vector of many.")
    smve = SmveSchema(required=False, allow_null=True, help_text="One sparse vector of many.")
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


class SparseSchema(fields.Serializer[Any]):
    dims = fields.IntegerField()
    dtype = fields.CharField()
    indices = fields.ListField(child=fields.IntegerField())
    values = fields.ListField(child=fields.FloatField())


class MultiVectorSchema(fields.Serializer[Any]):
    token_dims = fields.IntegerField()
    num_tokens = fields.IntegerField()
    dtype = fields.CharField()
    values = fields.ListField(child=fields.ListField(child=fields.FloatField()))
    scale = fields.ListField(child=fields.FloatField(), required=False, help_text="One for each row.")
    offset = fields.ListField(child=fields.FloatField(), required=False)


class VectorsSchema(fields.Serializer[Any]):
    dense = DenseSchema(required=False)
    sparse = SparseSchema(required=False)
    multivector = MultiVectorSchema(required=False)


class EncodedChunkSchema(VectorsSchema):
    start = fields.IntegerField(help_text="Its first character.")
    end = fields.IntegerField(help_text="The character behind its last.")


class EncodedItemSchema(VectorsSchema):
    id = fields.CharField(required=False)
    truncated = fields.BooleanField(required=False)
    chunks = EncodedChunkSchema(many=True, required=False)


class UsageSchema(fields.Serializer[Any]):
    input_tokens = fields.IntegerField()
    images = fields.IntegerField(required=False)
    pages = fields.IntegerField(required=False)
    audio_ms = fields.IntegerField(required=False)


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


class ScoreOptionsSchema(fields.Serializer[Any]):
    normalize = fields.BooleanField(required=False, allow_null=True, help_text="0 to 1, or the model's own number.")
    overflow = fields.ChoiceField(OVERFLOWS, required=False, allow_null=True)
    profile = fields.CharField(required=False, allow_null=True)


class ScoreSchema(fields.Serializer[Any]):
    query = ItemSchema()
    items = ItemSchema(many=True)
    instruction = fields.CharField(required=False, allow_null=True)
    options = ScoreOptionsSchema(required=False, allow_null=True)


class ScoredSchema(fields.Serializer[Any]):
    item_id = fields.CharField(help_text="The item's own id, or `item-` and its position.")
    score = fields.FloatField()
    rank = fields.IntegerField(help_text="0 is the best.")


class ScoresSchema(fields.Serializer[Any]):
    model = fields.CharField()
    query_id = fields.CharField(allow_null=True)
    scores = ScoredSchema(many=True)
    usage = UsageSchema()
    timing = TimingSchema()


class ExtractOptionsSchema(fields.Serializer[Any]):
    threshold = fields.FloatField(required=False, allow_null=True, min_value=0, max_value=1)
    flat = fields.BooleanField(required=False, allow_null=True, help_text="No two spans overlap.")
    multi_label = fields.BooleanField(required=False, allow_null=True)
    top_k = fields.IntegerField(required=False, allow_null=True, min_value=1)
    task = fields.CharField(required=False, allow_null=True, help_text="Of models that do several.")
    language = fields.CharField(required=False, allow_null=True)
    timestamps = fields.BooleanField(required=False, allow_null=True, help_text="Of speech: its segments too.")
    pages = fields.ListField(child=fields.IntegerField(min_value=1), required=False, allow_null=True)
    max_new_tokens = fields.IntegerField(required=False, allow_null=True, min_value=1)
    overflow = fields.ChoiceField(LONG_TEXTS, required=False, allow_null=True)
    profile = fields.CharField(required=False, allow_null=True)


class ExtractParamsSchema(fields.Serializer[Any]):
    labels = fields.ListField(child=fields.CharField(), required=False, allow_null=True)
    output_schema = fields.DictField(required=False, allow_null=True)
    instruction = fields.CharField(required=False, allow_null=True)
    options = ExtractOptionsSchema(required=False, allow_null=True)


class ExtractSchema(fields.Serializer[Any]):
    items = ItemSchema(many=True)
    params = ExtractParamsSchema(required=False, allow_null=True)


class EntitySchema(fields.Serializer[Any]):
    text = fields.CharField()
    label = fields.CharField()  # type: ignore[assignment]  # the metaclass takes fields out of the class
    score = fields.FloatField()
    start = fields.IntegerField(required=False, help_text="Characters from the text's beginning.")
    end = fields.IntegerField(required=False)
    bbox = fields.ListField(child=fields.FloatField(), required=False, help_text="x1, y1, x2, y2 in pixels.")


class RelationSchema(fields.Serializer[Any]):
    head = fields.CharField()
    tail = fields.CharField()
    relation = fields.CharField()
    score = fields.FloatField()


class ClassificationSchema(fields.Serializer[Any]):
    label = fields.CharField()  # type: ignore[assignment]
    score = fields.FloatField()


class ObjectSchema(ClassificationSchema):
    bbox = fields.ListField(child=fields.FloatField(), help_text="x1, y1, x2, y2 in pixels.")


class ExtractedItemSchema(fields.Serializer[Any]):
    id = fields.CharField(help_text="The item's own id, or `item-` and its position.")
    entities = EntitySchema(many=True)
    relations = RelationSchema(many=True)
    classifications = ClassificationSchema(many=True)
    objects = ObjectSchema(many=True)
    data = fields.DictField()  # type: ignore[assignment]
    error = fields.JSONField(required=False, help_text="Why this item alone failed.")


class ExtractedSchema(fields.Serializer[Any]):
    model = fields.CharField()
    items = ExtractedItemSchema(many=True)
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


class NewTaskSchema(fields.Serializer[Any]):
    """Beside these, the keys of the primitive's own body."""

    primitive = fields.ChoiceField(tuple(VOCABULARIES))
    model = fields.CharField()
    items = ItemSchema(many=True)
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


class ErrorSchema(fields.Serializer[Any]):
    error = fields.JSONField(help_text="`code`, `message`, and where it helps `param` and `retry_after`.")
