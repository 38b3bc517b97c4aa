"""Who may use the management API, and how it answers when something is wrong: for REST framework, off the hot path."""

import time
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from catalog import keys
from catalog.issuing import read_keys
from catalog.keys import KeyRecord
from protocol import errors

_SCHEME = "bearer "


class KeyUser:
    """What `request.user` is for a caller with an API key; the key itself is `request.auth`."""

    is_authenticated = True
    is_staff = False


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sk-shoal-…`, read from the database: a key revoked now is refused now."""

    def authenticate(self, request: Request) -> tuple[KeyUser, KeyRecord] | None:
        header = get_authorization_header(request).decode("latin-1")
        if not header.lower().startswith(_SCHEME):
            return None
        return KeyUser(), keys.authenticate(read_keys(), header[len(_SCHEME) :].strip(), time.time())

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class IsAdministrator(BasePermission):
    """An admin key, or somebody who may log in to the admin site."""

    message = "This needs an API key with the admin flag, or a staff session."

    def has_permission(self, request: Request, view: Any) -> bool:
        if isinstance(request.auth, KeyRecord):
            return request.auth.is_admin
        return bool(request.user and request.user.is_staff)


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the key looks in the OpenAPI schema."""

    target_class = "catalog.access.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "sk-shoal-…"}


def answer_error(error: Exception, context: Any) -> Response | None:
    """Every error in the one envelope; None for what is nobody's mistake but ours."""
    known = _as_ours(error)
    if known is None:
        return None
    response = Response({"error": known.to_wire()}, status=getattr(error, "status_code", known.status))
    if known.status == errors.Unauthorized.status:
        response["WWW-Authenticate"] = "Bearer"
    return response


def _as_ours(error: Exception) -> errors.ShoalError | None:
    if isinstance(error, errors.ShoalError):
        return error
    if isinstance(error, exceptions.ValidationError):
        param, message = _first(error.detail)
        return errors.InvalidInput(f"{param}: {message}" if param else message, param=param)
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        return errors.Unauthorized(str(error.detail))
    if isinstance(error, exceptions.PermissionDenied):
        return errors.Forbidden(str(error.detail))
    if isinstance(error, exceptions.MethodNotAllowed):
        return errors.MethodNotAllowed(str(error.detail))
    if isinstance(error, exceptions.APIException) and error.status_code < 500:
        return errors.InvalidInput(str(error.detail))
    return None


def _first(detail: Any) -> tuple[str | None, str]:
    """The first complaint of a serializer and the field it is about."""
    if isinstance(detail, dict):
        field, inner = next(iter(detail.items()))
        param, message = _first(inner)
        if field == "non_field_errors":
            return param, message
        return f"{field}.{param}" if param else str(field), message
    if isinstance(detail, list):
        return _first(detail[0])
    return None, str(detail)
