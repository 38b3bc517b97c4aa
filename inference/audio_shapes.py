"""The shapes of the routes that write down speech, for OpenAPI alone: see `shapes`."""

from typing import Any

from rest_framework import serializers as fields

from inference.dialects.transcriptions import FORMATS


class TranslationSchema(fields.Serializer[Any]):
    file = fields.FileField(help_text="WAV, FLAC, Ogg or MP3, at most 30 minutes.")
    model = fields.CharField()
    prompt = fields.CharField(required=False, help_text="Names, spelling, style.")
    response_format = fields.ChoiceField(FORMATS, required=False)
    temperature = fields.FloatField(required=False, min_value=0, max_value=0)


class TranscriptionSchema(TranslationSchema):
    language = fields.CharField(required=False, help_text="A code such as `de`; else the model tells it.")
    timestamp_granularities = fields.ListField(child=fields.ChoiceField(("segment",)), required=False)


class SegmentSchema(fields.Serializer[Any]):
    id = fields.IntegerField()
    seek = fields.IntegerField(help_text="Its start, in hundredths of a second.")
    start = fields.FloatField(help_text="Seconds.")
    end = fields.FloatField(help_text="Seconds.")
    text = fields.CharField()
    tokens = fields.ListField(child=fields.IntegerField())
    temperature = fields.FloatField()
    avg_logprob = fields.FloatField()
    compression_ratio = fields.FloatField()
    no_speech_prob = fields.FloatField()


class DurationSchema(fields.Serializer[Any]):
    type = fields.CharField()
    seconds = fields.FloatField()


class TranscribedSchema(fields.Serializer[Any]):
    text = fields.CharField()
    usage = DurationSchema()
    task = fields.CharField(required=False, help_text="This and what follows in verbose_json alone.")
    language = fields.CharField(required=False)
    duration = fields.FloatField(required=False, help_text="Seconds.")
    segments = SegmentSchema(many=True, required=False)
