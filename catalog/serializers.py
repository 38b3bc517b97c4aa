"""The management API's bodies."""

from typing import Any, ClassVar

from django.core.exceptions import ValidationError as ModelError
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from catalog import issuing, registry
from catalog.models import ApiKey, Pool, RegisteredModel
from catalog.reading import unknown
from catalog.schema import EntryError
from protocol.errors import ModelNotFound
from protocol.spec import PRIMITIVES


class Strict(serializers.Serializer[Any]):
    """Refuses fields it does not know: a misspelt decision must not be taken for done."""

    def to_internal_value(self, data: Any) -> Any:
        known = [name for name, field in self.fields.items() if not field.read_only]
        if isinstance(data, dict):
            strange = {str(name): [unknown(name, known)] for name in data if name not in known}
            if strange:
                raise serializers.ValidationError(strange)
        return super().to_internal_value(data)


class DecisionsSerializer(Strict):
    """What an administrator may decide about a model; null means "as the entry says"."""

    enabled = serializers.BooleanField(required=False)
    pinned = serializers.BooleanField(required=False, allow_null=True)
    pool = serializers.SlugRelatedField(slug_field="name", queryset=Pool.objects.all(), required=False, allow_null=True)
    max_tokens = serializers.IntegerField(min_value=1, required=False, allow_null=True)
    budget = serializers.IntegerField(min_value=1, required=False, allow_null=True)
    max_items = serializers.IntegerField(min_value=1, required=False, allow_null=True)

    def update(self, row: RegisteredModel, decided: dict[str, Any]) -> RegisteredModel:
        for name, value in decided.items():
            setattr(row, name, value)
        return _checked_and_saved(row)


class EffectiveSerializer(serializers.Serializer[Any]):
    """The entry with the decisions applied: what workers are told."""

    pinned = serializers.BooleanField()
    pool = serializers.CharField()
    max_tokens = serializers.IntegerField(allow_null=True)
    budget = serializers.IntegerField(allow_null=True)
    max_items = serializers.IntegerField()
    digest = serializers.CharField()


class ModelSerializer(serializers.Serializer[Any]):
    """A model as it is shown."""

    id = serializers.CharField(source="name")
    family = serializers.CharField()
    bundle = serializers.CharField()
    primitives = serializers.ListField(child=serializers.CharField())
    aliases = serializers.ListField(child=serializers.CharField())
    description = serializers.CharField()
    origin = serializers.ChoiceField(choices=RegisteredModel.Source.choices, source="source")
    served = serializers.BooleanField(source="is_served")
    missing_since = serializers.DateTimeField(allow_null=True)
    enabled = serializers.BooleanField()
    pinned = serializers.BooleanField(allow_null=True)
    pool = serializers.CharField(source="pool.name", default=None, allow_null=True)
    max_tokens = serializers.IntegerField(allow_null=True)
    budget = serializers.IntegerField(allow_null=True)
    max_items = serializers.IntegerField(allow_null=True)
    effective = serializers.SerializerMethodField()
    entry = serializers.DictField()
    created = serializers.DateTimeField()
    updated = serializers.DateTimeField()

    @extend_schema_field(EffectiveSerializer(allow_null=True))
    def get_effective(self, row: RegisteredModel) -> dict[str, Any] | None:
        """None for an entry that is not valid any more."""
        try:
            model = row.effective()
        except EntryError:
            return None
        decided = ("pool", "max_tokens", "budget", "max_items", "digest")
        return {"pinned": model.pinned, **{name: getattr(model.spec, name) for name in decided}}


class EntrySerializer(serializers.Serializer[Any]):
    """An entry document, as in a catalog file; docs/catalog.md describes its keys."""

    def to_internal_value(self, data: Any) -> Any:
        return {"entry": data}

    def create(self, validated: dict[str, Any]) -> RegisteredModel:
        return _checked_and_saved(RegisteredModel(entry=validated["entry"]))


class KeySerializer(serializers.ModelSerializer[ApiKey]):
    """A key as it is shown: never its secret."""

    state = serializers.SerializerMethodField()

    class Meta:
        model = ApiKey
        fields: ClassVar[tuple[str, ...]] = (
            "prefix",
            "name",
            "state",
            "primitives",
            "allowed_models",
            "lane",
            "is_admin",
            "expires",
            "revoked",
            "last_used",
            "created",
        )

    def get_state(self, row: ApiKey) -> str:
        return row.state(timezone.now())


class NewKeySerializer(Strict):
    """What a new key shall be."""

    name = serializers.CharField(max_length=100)
    primitives = serializers.MultipleChoiceField(choices=PRIMITIVES, required=False)
    allowed_models = serializers.ListField(child=serializers.CharField(), required=False)
    lane = serializers.ChoiceField(choices=ApiKey.LANES, required=False)
    is_admin = serializers.BooleanField(required=False)
    expires = serializers.DateTimeField(required=False, allow_null=True)

    def validate_primitives(self, wanted: set[str]) -> list[str]:
        return sorted(wanted)

    def validate_allowed_models(self, wanted: list[str]) -> list[str]:
        """Aliases become ids; a model that does not exist would lock the key's holder out."""
        catalog = registry.build(version=0)
        try:
            return [catalog.resolve(name).model.spec.model for name in wanted]
        except ModelNotFound as error:
            raise serializers.ValidationError(error.message) from None

    def create(self, validated: dict[str, Any]) -> tuple[ApiKey, str]:
        row = ApiKey(**validated)
        text = issuing.issue(row)
        row.save()
        return row, text


class CreatedKeySerializer(KeySerializer):
    """A key just made, with its text: the only answer that ever holds it."""

    key = serializers.CharField()

    class Meta(KeySerializer.Meta):
        fields: ClassVar[tuple[str, ...]] = ("key", *KeySerializer.Meta.fields)


def _checked_and_saved(row: RegisteredModel) -> RegisteredModel:
    try:
        row.full_clean(exclude=RegisteredModel.COPIED)
    except ModelError as error:
        raise serializers.ValidationError(error.message_dict) from None
    row.save()
    return row
