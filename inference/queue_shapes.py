"""The shape of `/v1/queues`, for OpenAPI alone: see `shapes`."""

from typing import Any

from rest_framework import serializers as fields

from protocol.names import LANES


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
