"""What Django answers where no view does: the error envelope for programs, its own pages for people in the admin."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import defaults

from protocol.errors import InvalidInput, RouteNotFound, ShoalError

_FOR_PEOPLE = ("/admin/", "/static/")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith(_FOR_PEOPLE):
        return defaults.page_not_found(request, exception)
    return _envelope(RouteNotFound(f"There is nothing at {request.path[:80]!r}; /docs shows what there is."))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """What Django itself refuses, such as a host name that is not ours."""
    if request.path.startswith(_FOR_PEOPLE):
        return defaults.bad_request(request, exception)
    return _envelope(InvalidInput("The gateway cannot take this request: its host name or its form is not accepted."))


def failed(request: HttpRequest) -> HttpResponse:
    if request.path.startswith(_FOR_PEOPLE):
        return defaults.server_error(request)
    return _envelope(ShoalError("Something went wrong in the gateway; its log says what."))


def _envelope(error: ShoalError) -> JsonResponse:
    body: dict[str, Any] = {"error": error.to_wire()}
    return JsonResponse(body, status=error.status)
