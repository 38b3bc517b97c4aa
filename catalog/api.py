"""The management API: models and keys. Plain REST framework; settings let administrators in and nobody else."""

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from catalog import issuing
from catalog.models import ApiKey, RegisteredModel
from catalog.serializers import (
    CreatedKeySerializer,
    DecisionsSerializer,
    EntrySerializer,
    KeySerializer,
    ModelSerializer,
    NewKeySerializer,
)
from protocol.errors import ModelNotFound, RouteNotFound


class Models(APIView):
    @extend_schema(operation_id="models_list", tags=["management"], responses=ModelSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every model in the database, served or not."""
        rows = RegisteredModel.objects.select_related("pool")
        return Response(ModelSerializer(rows, many=True).data)

    @extend_schema(
        operation_id="models_create", tags=["management"], request=EntrySerializer, responses={201: ModelSerializer}
    )
    def post(self, request: Request) -> Response:
        """Add a model from an entry document."""
        serializer = EntrySerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return Response(ModelSerializer(serializer.save()).data, status=status.HTTP_201_CREATED)


class Model(APIView):
    @extend_schema(operation_id="models_retrieve", tags=["management"], responses=ModelSerializer)
    def get(self, request: Request, name: str) -> Response:
        """One model."""
        return Response(ModelSerializer(_model(name)).data)

    @extend_schema(
        operation_id="models_update", tags=["management"], request=DecisionsSerializer, responses=ModelSerializer
    )
    def patch(self, request: Request, name: str) -> Response:
        """Decide about a model; null takes a decision back, so that the entry counts again."""
        serializer = DecisionsSerializer(_model(name), data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        return Response(ModelSerializer(serializer.save()).data)


class Keys(APIView):
    @extend_schema(operation_id="keys_list", tags=["management"], responses=KeySerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every API key, revoked ones included; secrets are not kept, so none are shown."""
        return Response(KeySerializer(ApiKey.objects.all(), many=True).data)

    @extend_schema(
        operation_id="keys_create",
        tags=["management"],
        request=NewKeySerializer,
        responses={201: CreatedKeySerializer},
    )
    def post(self, request: Request) -> Response:
        """Make a key. Its text is in this answer and nowhere else."""
        serializer = NewKeySerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        row, text = serializer.save()
        body = {"key": text, **KeySerializer(row).data}
        return Response(body, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class Key(APIView):
    @extend_schema(operation_id="keys_revoke", tags=["management"], responses={204: None})
    def delete(self, request: Request, prefix: str) -> Response:
        """Revoke a key: gateways refuse it within about a second."""
        row = ApiKey.objects.filter(prefix=prefix).first()
        if row is None:
            raise RouteNotFound(f"There is no key with the prefix {prefix[:20]!r}; GET /api/keys/ lists them.")
        issuing.revoke(row, timezone.now())
        return Response(status=status.HTTP_204_NO_CONTENT)


def _model(name: str) -> RegisteredModel:
    # PostgreSQL refuses to look for a zero byte.
    row = None if "\0" in name else RegisteredModel.objects.select_related("pool").filter(name=name).first()
    if row is None:
        raise ModelNotFound(f"There is no model {name[:80]!r}; GET /api/models/ lists them.", param="model")
    return row
