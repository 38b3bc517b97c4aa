"""The two live pages of the admin: the overview on its index and the fleet.

Each is rendered whole on the server and works without JavaScript; console/live.js then asks for the live part again
every second. One template renders both, so a value is escaped in one place.
"""

import time
from typing import Any, cast

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import reverse

from admin import fleet
from inference.backlog import Backlog, backlogs
from inference.gateway import Gateway
from protocol import clock

_may_view = permission_required("catalog.view_registeredmodel", raise_exception=True)


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Unfold's DASHBOARD_CALLBACK: what the index shows."""
    context["title"] = "Overview"
    if cast(User, request.user).has_perm("catalog.view_registeredmodel"):
        context["fleet"] = fleet.current()
        context["live_url"] = reverse("overview-live")
    context["flower_url"] = settings.SHOAL_FLOWER_URL
    return context


@_may_view
def overview_live(request: HttpRequest) -> HttpResponse:
    return _fragment(request, "console/overview_live.html")


@_may_view
def fleet_page(request: HttpRequest) -> HttpResponse:
    context = {
        **admin.site.each_context(request),
        "title": "Fleet",
        **_live(request),
        "live_url": reverse("fleet-live"),
    }
    return TemplateResponse(request, "console/fleet.html", context)


@_may_view
def fleet_live(request: HttpRequest) -> HttpResponse:
    return _fragment(request, "console/fleet_live.html")


def _fragment(request: HttpRequest, template: str) -> HttpResponse:
    return render(request, template, _live(request))


def _live(request: HttpRequest) -> dict[str, Any]:
    return {"fleet": fleet.current(), "waiting": _waiting(request)}


def _waiting(request: HttpRequest) -> list[Backlog] | None:
    """What this process' gateway last saw of the queues, on whichever broker; None when it cannot say."""
    gateway: Gateway | None = getattr(request, "scope", {}).get("shoal.gateway")
    if gateway is None or not gateway.queues.current.is_fresh(time.monotonic()):
        return None
    found = backlogs(gateway.catalog.current, gateway.fleet.current, gateway.queues, time.monotonic(), clock.now())
    return [one for one in found if one.total.messages or one.total.items]
