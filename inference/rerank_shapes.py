"""The shapes of bodies in the wordings of Cohere, Jina and text-embeddings-inference, for OpenAPI alone."""

from typing import Any

from rest_framework import serializers as fields

from inference.shapes import ScoreOptionsSchema, TokensSchema


class RerankSchema(fields.Serializer[Any]):
    model = fields.CharField()
    query = fields.CharField()
    documents = fields.ListField(child=fields.JSONField(), help_text="1 to 1,000 strings, or maps with `text`.")
    top_n = fields.IntegerField(required=False, allow_null=True, min_value=1)
    return_documents = fields.BooleanField(required=False, allow_null=True)
    instruction = fields.CharField(required=False, allow_null=True)
    options = ScoreOptionsSchema(required=False, allow_null=True)


class RankedSchema(fields.Serializer[Any]):
    index = fields.IntegerField(help_text="Its position in the request.")
    relevance_score = fields.FloatField(help_text="0 to 1.")
    truncated = fields.BooleanField(required=False, help_text="Part of the document was not read.")
    document = fields.DictField(required=False)


class RerankedSchema(fields.Serializer[Any]):
    id = fields.CharField()
    object = fields.CharField()
    model = fields.CharField()
    results = RankedSchema(many=True)
    usage = TokensSchema()
    meta = fields.DictField()


class TeiRerankSchema(fields.Serializer[Any]):
    model = fields.CharField(required=False, allow_null=True)
    query = fields.CharField()
    texts = fields.ListField(child=fields.CharField())
    raw_scores = fields.BooleanField(required=False, default=False)
    return_text = fields.BooleanField(required=False, default=False)
    truncate = fields.BooleanField(required=False, default=False, help_text="Cut what is too long, or refuse it.")


class TeiRankSchema(fields.Serializer[Any]):
    index = fields.IntegerField()
    score = fields.FloatField()
    text = fields.CharField(required=False)


class TeiEmbedSchema(fields.Serializer[Any]):
    model = fields.CharField(required=False, allow_null=True)
    inputs = fields.JSONField(help_text="A string, strings, token ids, or lists of token ids.")
    truncate = fields.BooleanField(required=False, default=False, help_text="Cut what is too long, or refuse it.")
    normalize = fields.BooleanField(required=False, default=True)
    prompt_name = fields.ChoiceField(("query", "document", "passage"), required=False, allow_null=True)
    dimensions = fields.IntegerField(required=False, allow_null=True, min_value=1)


class TeiErrorSchema(fields.Serializer[Any]):
    error = fields.CharField()
    error_type = fields.CharField()
    code = fields.CharField()
    param = fields.CharField(required=False)
